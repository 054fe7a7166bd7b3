"""Decode's output waits for prefill's verdict where the router says so."""

from __future__ import annotations

import asyncio

import pytest
from worker_harness import Bench, delta, ids_of, terminate_at

from tandem.engine.base import Ending
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import worker_pb2
from tandem_decode_worker.rules import DecodeRules

FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED
TERMINATED = worker_pb2.LegClosed.OUTCOME_TERMINATED
CANCELLED = worker_pb2.LegClosed.OUTCOME_CANCELLED


def test_held_output_goes_when_it_is_released(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(hold=True, task={"want_token_ids": True, "want_report": True})
    ids = ids_of(tokenizer, "held back")
    bench.step(delta(request, ids[:1]))
    said = bench.step(delta(request, ids[1:], Ending.LENGTH))
    assert said.rows(101) == said.finishes(101) == said.reports(101) == []
    assert said.of(1, "closed") == []
    assert said.order == ["started"]
    bench.release(1)
    bench.take()
    assert said.text(101) == "held back"
    assert said.token_ids(101) == ids
    assert said.closed(1).outcome == FINISHED
    assert said.order == ["started", "sequence", "finish", "report", "closed"]


async def test_held_output_leaves_with_its_release_and_waits_for_no_further_step(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer)
    request = bench.start(hold=True)
    bench.step(delta(request, ids_of(tokenizer, "first")))
    frames = bench.link.outbox.messages()
    bench.link.report_load()
    await anext(frames)  # nothing is left that would wake the outbox
    bench.release(1)
    frame = await asyncio.wait_for(anext(frames), 5)
    bench.said.add(worker_pb2.WorkerFrame.FromString(frame))
    assert bench.said.text(101) == "first"


def test_a_released_leg_goes_on_without_holding(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(hold=True)
    bench.step(delta(request, ids_of(tokenizer, "a")))
    bench.release(1)
    assert bench.take().text(101) == "a"
    assert bench.step(delta(request, ids_of(tokenizer, "b"))).text(101) == "ab"


@pytest.mark.promise("S0-019", "S0-035")
@pytest.mark.parametrize("ended", [False, True])
def test_what_was_held_is_never_shown_when_the_leg_is_cancelled(
    tokenizer: Tokenizer, ended: bool
) -> None:
    bench = Bench(tokenizer)
    request = bench.start(hold=True)
    bench.step(delta(request, ids_of(tokenizer, "a"), Ending.LENGTH if ended else None))
    bench.cancel(1, "hook_failed")
    said = bench.settle()
    assert said.closed(1).outcome == CANCELLED
    bench.release(1)
    assert bench.take().rows(101) == []
    assert len(bench.hook.finals(request)) == 1


def test_a_hold_that_never_ends_fails_closed(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(hold=True)
    for _ in range(DecodeRules.max_held_rows + 1):
        bench.step(delta(request, [20]))
    said = bench.settle()
    assert said.closed(1).error.code == "hook_failed"
    assert said.rows(101) == []


def test_a_terminate_while_held_waits_for_the_release(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=terminate_at(2))
    request = bench.start(hold=True)
    bench.step(delta(request, ids_of(tokenizer, "a")))
    bench.step(delta(request, ids_of(tokenizer, "b")))
    assert bench.settle().of(1, "closed") == []
    bench.release(1)
    said = bench.take()
    assert said.text(101) == "a"
    assert said.closed(1).outcome == TERMINATED
