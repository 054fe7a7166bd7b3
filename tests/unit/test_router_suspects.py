"""What the router says of requests that a worker may have died of: who they are and how large,
never what they say.
"""

from __future__ import annotations

import logging

import pytest

from tandem.v1 import common_pb2, router_pb2
from tandem_router.core import actions
from tandem_router.core.actions import Suspect
from tandem_router.suspects import MOST_NAMED, MOST_READ_BYTES, log_death, sizes
from tandem_router.translate import promptless

SECRET = "nobody may read this"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def _suspect(task: bytes, let_go_bytes: int = 0, prompt_tokens: int = 0) -> Suspect:
    submit = router_pb2.Submit(n=3, model=SECRET, trace_id=TRACE, prompt_tokens=prompt_tokens)
    return Suspect(submit, task, let_go_bytes)


def _task() -> bytes:
    processor = common_pb2.LogitsProcessor(name=SECRET, args_json=SECRET * 2)
    return common_pb2.Task(
        prompt_text=SECRET,
        sampling=common_pb2.SamplingParams(max_tokens=9, stop=[SECRET, SECRET]),
        logits=common_pb2.LogitsSpec(processors=[processor]),
        metadata={SECRET: SECRET},
    ).SerializeToString()


@pytest.mark.promise("S6-156")
def test_sizes_of_a_request_s_parts_say_nothing_of_their_content() -> None:
    task, length = _task(), len(SECRET)
    assert sizes(_suspect(task)) == (
        f"n=3 bytes={len(task)} prompt_text={length} max_tokens=9 stop={2 * length} "
        f"metadata={2 * length} args_json[0]={2 * length}"
    )


@pytest.mark.promise("S5-250", "S6-156")
def test_sizes_are_known_when_the_prompt_was_let_go() -> None:
    whole = common_pb2.Task.FromString(_task())
    whole.prompt_text = ""
    whole.prompt_token_ids[:] = range(1000)
    suspect = _suspect(whole.SerializeToString(), prompt_tokens=1000)
    rest = promptless(suspect.task)
    size = len(suspect.task) - len(rest)
    assert size > 1000
    let_go = _suspect(rest, size, prompt_tokens=1000)
    assert sizes(let_go) == sizes(suspect)
    assert f"bytes={len(suspect.task)} prompt_token_ids=1000" in sizes(let_go)


@pytest.mark.promise("S5-250", "S6-156")
def test_the_size_of_a_text_that_was_let_go_is_that_of_its_field() -> None:
    rest = promptless(_task())
    suspect = _suspect(rest, len(_task()) - len(rest))
    assert f"bytes={len(_task())} prompt_text={len(SECRET) + 2}" in sizes(suspect)


@pytest.mark.promise("S5-250")
def test_without_its_prompt_a_task_is_what_it_was() -> None:
    expected = common_pb2.Task.FromString(_task())
    expected.prompt_text = ""
    assert common_pb2.Task.FromString(promptless(_task())) == expected
    assert promptless(b"\xff no task") == b"\xff no task"


@pytest.mark.parametrize("task", [b"", b"\xff\xff no task at all"])
def test_sizes_of_what_is_no_task_are_said_too(task: bytes) -> None:
    assert sizes(_suspect(task)).startswith("n=3")


@pytest.mark.promise("S6-142")
def test_a_death_is_logged_with_its_suspects_and_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log_death(actions.WorkerDied("w:1", "it crashed", (_suspect(_task()),) * (MOST_NAMED + 9)))
    first, *others = caplog.records
    assert (first.levelname, first.__dict__["count"]) == ("ERROR", MOST_NAMED + 9)
    assert len(others) == MOST_NAMED
    assert {each.__dict__["trace_id"] for each in others} == {TRACE}
    assert SECRET not in str([each.__dict__ for each in caplog.records])


def test_only_so_much_of_the_tasks_is_read(caplog: pytest.LogCaptureFixture) -> None:
    large = common_pb2.Task(prompt_text="x" * (MOST_READ_BYTES - 100)).SerializeToString()
    log_death(actions.WorkerDied("w:1", "it crashed", tuple(map(_suspect, (large, large, b"")))))
    said = [each.__dict__["sizes"] for each in caplog.records[1:]]
    assert said[0].startswith(f"n=3 bytes={len(large)} prompt_text=")
    assert said[1:] == [f"n=3 bytes={len(large)}", "n=3 bytes=0"]
