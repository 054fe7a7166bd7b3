"""Decode's output waits for prefill's verdict, beside worker_traces/held.txt."""

from __future__ import annotations

import asyncio

from worker_harness import Bench, delta, ids_of

from tandem.text.tokenizer import Tokenizer
from tandem.v1 import worker_pb2
from tandem_decode_worker.rules import DecodeRules


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


def test_a_hold_that_never_ends_fails_closed(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(hold=True)
    for _ in range(DecodeRules.max_held_rows + 1):
        bench.step(delta(request, [20]))
    said = bench.settle()
    assert said.closed(1).error.code == "hook_failed"
    assert said.rows(101) == []
