"""The one place that calls hooks turns all they do into verdicts or HookErrors."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from tandem.errors import HookError
from tandem.hooks.contract import Chunk, Hook, Verdict, emit, suppress, terminate
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.piece import Piece
from tandem.hooks.runner import HookRunner
from tandem.hooks.sequence_hook import SequenceHook
from tandem.hooks.settings import HookEntry


def _sequence(judge: Callable[[Chunk], Any], **entry: Any) -> tuple[SequenceHook, HookRunner]:
    settings = HookEntry(path="h", name="h", **entry)
    runner = HookRunner(cast(Hook, judge), entry=settings, phase="decode", model="m")
    info = SequenceInfo(request_id=5, group=1, output_index=1, streaming=True, trace_id="t")
    return SequenceHook(runner, info), runner


@pytest.mark.promise("S0-034")
def test_a_chunk_says_whose_it_is_and_cannot_be_changed() -> None:
    seen: list[Chunk] = []

    def judge(chunk: Chunk) -> Verdict:
        seen.append(chunk)
        return emit(chunk.text_diff)

    sequence, _ = _sequence(judge)
    sequence.judge(Piece("ab", (1, 2)), False)
    sequence.judge(Piece("c", (3,)), True)
    assert seen[1] == Chunk(
        request_id=5,
        output_index=1,
        text_diff="c",
        text="abc",
        token_ids_diff=(3,),
        is_final=True,
        aborted=False,
        streaming=True,
        phase="decode",
        trace_id="t",
        model="m",
    )
    assert type(seen[0]) is Chunk
    assert seen[0].text == "ab"
    with pytest.raises(AttributeError):
        seen[0].text = "other"  # type: ignore[misc]


def _raises(error: BaseException) -> Callable[[Chunk], Any]:
    def judge(chunk: Chunk) -> Any:
        raise error

    return judge


@pytest.mark.promise("S0-019", "S0-020")
@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (_raises(RuntimeError("the text was secret")), "RuntimeError"),
        (_raises(SystemExit(3)), "SystemExit"),
        (_raises(asyncio.CancelledError()), "CancelledError"),
        (_raises(StopIteration()), "StopIteration"),
        (lambda chunk: None, "answered NoneType"),
        (lambda chunk: "text", "answered str"),
        (lambda chunk: Verdict("explode"), "unknown action"),  # type: ignore[arg-type]
        (lambda chunk: Verdict([]), "unknown action"),  # type: ignore[arg-type]
        (lambda chunk: emit(None), "text is NoneType"),  # type: ignore[arg-type]
        (lambda chunk: emit(b"x"), "text is bytes"),  # type: ignore[arg-type]
        (lambda chunk: emit("\ud800"), "not valid Unicode"),
        (lambda chunk: emit("x", hold_tokens=2), "more tokens than there are"),
        (lambda chunk: emit("x", hold_tokens=-1), "more tokens than there are"),
        (lambda chunk: emit("x", hold_tokens=True), "more tokens than there are"),
        (lambda chunk: terminate(7), "terminate's reason is int"),  # type: ignore[arg-type]
        (lambda chunk: terminate("\udfff"), "not valid Unicode"),
    ],
)
def test_whatever_is_no_verdict_is_a_hook_error(judge: Callable[[Chunk], Any], words: str) -> None:
    sequence, runner = _sequence(judge)
    with pytest.raises(HookError) as failed:
        sequence.judge(Piece("x", (1,)), False)
    assert words in failed.value.message
    assert "secret" not in failed.value.message
    assert runner.tally.verdicts["error"] == 1


def test_verdicts_and_times_are_counted() -> None:
    verdicts = iter([emit("x"), emit("y"), suppress(), terminate("r")])
    sequence, runner = _sequence(lambda chunk: next(verdicts))
    for _ in range(4):
        sequence.judge(Piece("x", (1,)), False)
    assert runner.tally.verdicts == {
        "emit": 1,
        "rewrite": 1,
        "suppress": 1,
        "terminate": 1,
        "error": 0,
        "timeout": 0,
    }
    assert sum(runner.tally.seconds.counts) == 4
    assert runner.tally.seconds.total == sequence.seconds > 0
    assert sequence.reason == "r"


@pytest.mark.promise("S0-022")
def test_an_aborted_sequence_is_ended_once_and_its_verdict_ignored() -> None:
    calls: list[Chunk] = []

    def judge(chunk: Chunk) -> Verdict:
        calls.append(chunk)
        return emit(chunk.text_diff)

    sequence, runner = _sequence(judge)
    sequence.judge(Piece("ab", (1,)), False)
    sequence.abort()
    sequence.abort()
    assert [(call.is_final, call.aborted) for call in calls] == [(False, False), (True, True)]
    assert (calls[1].text_diff, calls[1].text, calls[1].token_ids_diff) == ("", "ab", ())
    assert runner.tally.verdicts["emit"] == 1


def test_a_failure_on_the_aborted_call_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sequence, _ = _sequence(_raises(ValueError("secret text")))
    with caplog.at_level(logging.WARNING):
        sequence.abort()
    (record,) = caplog.records
    assert record.__dict__["reason"] == "ValueError"
    assert "secret" not in str(record.__dict__)


def test_appending_text_does_not_copy_what_came_before() -> None:
    """With a hook that keeps nothing, a million appends would otherwise copy half a terabyte."""
    sequence, _ = _sequence(lambda chunk: emit(chunk.text_diff))
    before = sys.getallocatedblocks()
    for _ in range(1_000_000):
        sequence.judge(Piece("a", (1,)), False)
    assert sys.getallocatedblocks() - before < 1_000
