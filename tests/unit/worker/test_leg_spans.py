"""What the spans of a leg measure, beside worker_traces/spans.txt."""

from __future__ import annotations

import pytest
from worker_harness import KV, TRACE, Bench, delta, recorded_spans

from tandem.engine.base import Delta, Ending
from tandem.text.tokenizer import Tokenizer
from tandem.tracing.spans import Span

PARENT = 0xABCDEF


def bench_of(tokenizer: Tokenizer, *, hook: bool = False) -> tuple[Bench, list[Span]]:
    spans, told = recorded_spans("decode")
    return Bench(tokenizer, hook=hook, spans=spans), told


@pytest.mark.promise("S5-655")
def test_a_leg_says_what_its_task_and_its_engine_s_input_took(tokenizer: Tokenizer) -> None:
    bench, spans = bench_of(tokenizer)
    quiet = bench.start(1)
    taken_in = bench.counters.intake_seconds, bench.counters.submit_seconds
    assert min(taken_in) > 0
    request_id = bench.start(2, parent_span=PARENT)
    for each in (quiet, request_id):
        bench.step(delta(each, (20,), Ending.LENGTH))
    (leg,) = spans
    about = leg.attributes
    read = bench.counters.intake_seconds - taken_in[0]
    assert about["tandem.intake.cpu_seconds"] == pytest.approx(read)
    submitted = bench.counters.submit_seconds - taken_in[1]
    assert about["tandem.engine_input.cpu_seconds"] == pytest.approx(submitted)


def test_a_cancelled_leg_says_what_its_hooks_took(tokenizer: Tokenizer) -> None:
    bench, spans = bench_of(tokenizer, hook=True)
    request_id = bench.start(parent_span=PARENT)
    bench.step(delta(request_id, (20,)))
    bench.step(delta(request_id, (21,)))
    bench.cancel(1, "cancelled")
    bench.settle()
    (leg,) = spans
    seconds = leg.attributes["tandem.hook.seconds"]
    assert isinstance(seconds, float)
    assert seconds > 0


def test_the_transfer_of_a_traced_leg_is_an_exemplar_and_of_others_not(
    tokenizer: Tokenizer,
) -> None:
    bench, _ = bench_of(tokenizer)
    counters = bench.counters.transfers[KV.transport]
    empty = [("x", 0.0)] * len(counters.seconds.counts)
    bench.step(Delta(bench.start(1), (20,), Ending.STOP, kv=KV))
    assert not any(len(bucket) == 3 for bucket in counters.exemplars.beside(empty))
    bench.step(Delta(bench.start(2, parent_span=PARENT), (20,), Ending.STOP, kv=KV))
    (bucket,) = [bucket for bucket in counters.exemplars.beside(empty) if len(bucket) == 3]
    assert bucket[2].labels == {"trace_id": TRACE}
    assert bucket[2].value == KV.seconds
