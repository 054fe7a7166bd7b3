"""A row of a step in SGLang's scheduler becomes the token that it becomes alone, and its penalties
count what its sequence has put out.
"""

from __future__ import annotations

from typing import Any

import pytest
import sglang_sides

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The answers of sglang_rows_side.py."""
    return sglang_sides.answers(sglang_sides.HERE / "sglang_rows_side.py")


@pytest.mark.promise("S5-380")
@pytest.mark.parametrize("what", ["rows", "ties"])
def test_a_row_becomes_the_token_that_it_becomes_alone(seen: dict[str, Any], what: str) -> None:
    rows, others = seen[f"{what}_do_not_depend_on_neighbours"]
    assert rows > 400
    assert others == 0


def test_filters_let_in_what_they_say_and_greedy_rows_take_the_first_of_their_largest(
    seen: dict[str, Any],
) -> None:
    outside, missed, greedy = seen["what_filters_let_in"]
    assert (outside, missed, greedy) == (0, 0, 0)


def test_no_batch_is_sorted_for_its_greedy_rows(seen: dict[str, Any]) -> None:
    greedy, drawn = seen["greedy_rows_are_not_sorted"]
    assert greedy == [False, False, False]
    assert drawn == [True, True, True]


def test_log_probabilities_are_the_logits_own_in_every_batch(seen: dict[str, Any]) -> None:
    worst, alternatives = seen["log_probabilities_are_the_logits_own"]
    assert worst == 0
    assert alternatives


@pytest.mark.promise("S5-380", "S5-217")
def test_penalties_count_what_was_put_out_whoever_made_it_and_whenever_it_is_known(
    seen: dict[str, Any],
) -> None:
    steps, worst = seen["penalties_count_what_was_put_out"]
    assert steps > 300
    assert worst < 1e-5
