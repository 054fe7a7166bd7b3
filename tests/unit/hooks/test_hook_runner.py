"""The one place that calls hooks turns all they do into verdicts or HookErrors."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, cast

import pytest
from judging import abort, judge

from tandem.errors import HookError
from tandem.hooks.chain import Chain, SequenceChain
from tandem.hooks.contract import Chunk, Hook, Verdict, emit, suppress, terminate
from tandem.hooks.deferred import SequenceInfo
from tandem.hooks.loader import LoadedHook
from tandem.hooks.piece import Piece
from tandem.hooks.settings import HookEntry
from tandem.usercode.deadline import WATCH, OverdueError


def _sequence(answer: Callable[[Chunk], Any], **entry: Any) -> tuple[SequenceChain, LoadedHook]:
    settings = HookEntry(path="h", name="h", **entry)
    runner = LoadedHook(cast(Hook, answer), entry=settings, phase="decode", model="m")
    info = SequenceInfo(request_id=5, group=1, output_index=1, streaming=True, trace_id="t")
    return Chain([runner]).sequence(info), runner


@pytest.mark.promise("S0-034", "S6-174")
def test_a_chunk_says_whose_it_is_and_cannot_be_changed() -> None:
    seen: list[Chunk] = []

    def answer(chunk: Chunk) -> Verdict:
        seen.append(chunk)
        return emit(chunk.text_diff)

    sequence, _ = _sequence(answer)
    judge(sequence, Piece("ab", (1, 2)), False)
    judge(sequence, Piece("c", (3,)), True)
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


def _raises(error: BaseException, *, when_aborted: bool = False) -> Callable[[Chunk], Any]:
    def answer(chunk: Chunk) -> Any:
        if chunk.aborted is when_aborted:
            raise error

    return answer


def test_an_interrupt_at_any_call_of_a_hook_ends_its_sequence_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch may interrupt a call that has not begun, on a machine that stands still."""

    class Hook:
        def __call__(self, chunk: Chunk) -> Verdict:
            raise AssertionError("it was interrupted before")

        close = __call__

    def interrupt(due: float) -> None:
        raise OverdueError

    monkeypatch.setattr(WATCH, "next_look", float("inf"))
    monkeypatch.setattr(WATCH, "look_at", interrupt)
    sequence, runner = _sequence(Hook())
    with pytest.raises(HookError, match="longer than its timeout"):
        judge(sequence, Piece("x", (1,)), False)
    abort(sequence)
    assert runner.counters.verdicts["timeout"] == 3  # the chunk, the last words, and its close
    assert runner.counters.sequences == 0
    assert WATCH.due == 0.0


def test_verdicts_and_times_are_counted() -> None:
    verdicts = iter([emit("x"), emit("y"), suppress(), terminate("r")])
    sequence, runner = _sequence(lambda chunk: next(verdicts, suppress()))
    for _ in range(4):
        judge(sequence, Piece("x", (1,)), False)
    assert runner.counters.verdicts == {
        "emit": 1,
        "rewrite": 1,
        "suppress": 1,
        "terminate": 1,
        "error": 0,
        "timeout": 0,
    }
    assert sum(runner.counters.seconds.counts) == 5  # the last words too
    assert runner.counters.seconds.total == sequence.seconds > 0
    assert sequence.reason == "r"


@pytest.mark.promise("S0-022")
def test_an_aborted_sequence_is_ended_once_and_its_verdict_ignored() -> None:
    calls: list[Chunk] = []

    def answer(chunk: Chunk) -> Verdict:
        calls.append(chunk)
        return emit(chunk.text_diff)

    sequence, runner = _sequence(answer)
    judge(sequence, Piece("ab", (1,)), False)
    abort(sequence)
    abort(sequence)
    assert [(call.is_final, call.aborted) for call in calls] == [(False, False), (True, True)]
    assert (calls[1].text_diff, calls[1].text, calls[1].token_ids_diff) == ("", "ab", ())
    assert runner.counters.verdicts["emit"] == 1


def test_a_failure_on_the_aborted_call_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sequence, _ = _sequence(_raises(ValueError("secret text"), when_aborted=True))
    with caplog.at_level(logging.WARNING):
        abort(sequence)
    (record,) = caplog.records
    assert record.__dict__["reason"] == "ValueError"
    assert "secret" not in str(record.__dict__)


def test_appending_text_does_not_copy_what_came_before() -> None:
    """With a hook that keeps nothing, a million appends would otherwise copy half a terabyte."""
    sequence, _ = _sequence(lambda chunk: emit(chunk.text_diff))
    before = sys.getallocatedblocks()
    for _ in range(1_000_000):
        judge(sequence, Piece("a", (1,)), False)
    assert sys.getallocatedblocks() - before < 1_000
