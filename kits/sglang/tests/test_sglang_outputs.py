"""What a step puts out goes to the worker in two messages of SGLang's own transport, pickled and
packed alike: rows that go on, and the others as SGLang has them.
"""

from __future__ import annotations

from typing import Any

import pytest
import sglang_sides

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The answers of sglang_outputs_side.py."""
    return sglang_sides.answers(sglang_sides.HERE / "sglang_outputs_side.py")


STOP = {"type": "stop", "matched": 40}


def test_what_goes_on_comes_first_and_each_row_keeps_what_is_its_own(seen: dict[str, Any]) -> None:
    running, rest = seen["mixed"]
    assert running == [
        "running",
        ["r1", "r4"],
        [[1, 2], [4, 5, 6, 7, 8]],
        [11, 14],
        [21, 24],
        [[[101, 0.5, "wire 1"]], []],
    ]
    assert rest == [
        "BatchTokenIDOutput",
        ["r2", "r3", "r5"],
        [[2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8, 9, 10]],
        [12, 13, 15],
        [22, 23, 25],
        [32, 33, 35],
        [STOP, None, STOP],
        [[[2.0], [3.0], [5.0]], [[2], [3], [5]]],
        {"tandem_hand_over": [[[102, 0.5, "wire 2"]], [], []]},
        None,
    ]


def test_a_step_of_one_kind_is_one_message(seen: dict[str, Any]) -> None:
    assert seen["all_go_on"] == [
        ["running", ["r1", "r2"], [[1, 2], [2, 3, 4]], [11, 12], [21, 22], [[], []]]
    ]
    (ended,) = seen["all_end"]
    assert ended[:2] == ["BatchTokenIDOutput", ["r1", "r2"]]
    assert ended[-2:] == [{"tandem_hand_over": [[[101, 0.5, "wire 1"]], []]}, None]


def test_a_step_of_nobody_goes_to_the_first_process_and_a_rank_may_have_nowhere_to_send(
    seen: dict[str, Any],
) -> None:
    (idle,), second = seen["nobody_of_two"]
    assert (idle[:2], second) == (["BatchTokenIDOutput", []], [])
    assert seen["nobody"] == [idle]
    assert seen["of_a_rank_that_sends_nothing"] == "nothing"


@pytest.mark.promise("S5-450")
def test_each_process_is_sent_the_rows_of_its_own_requests(seen: dict[str, Any]) -> None:
    first, second, third = seen["of_three_processes"]
    name = "tandem-02-000003-0000000000000000000"
    running, rest = first
    assert running == ["running", ["r2"], [[2, 3, 4]], [12], [22], [[[102, 0.5, "wire 2"]]]]
    assert (rest[1], rest[6]) == (["r5"], [STOP])
    running, rest = second
    assert running[:3] == ["running", [f"{name}1", f"{name}4"], [[1, 2], [4, 5, 6, 7, 8]]]
    assert running[5] == [[[101, 0.5, "wire 1"]], []]
    assert (rest[1], rest[6]) == ([f"{name}3"], [STOP])
    assert rest[8] == {"tandem_hand_over": [[[103, 0.5, "wire 3"]]]}
    assert third == []


def test_a_step_of_one_process_is_one_message_to_that_process(seen: dict[str, Any]) -> None:
    first, ((_, rids, *_),) = seen["all_of_the_second_process"]
    assert (first, len(rids)) == ([], 2)
