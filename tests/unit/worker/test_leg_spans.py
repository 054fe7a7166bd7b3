"""The spans of a leg, however it ends."""

from __future__ import annotations

import pytest
from worker_harness import KV, TRACE, Bench, delta

from tandem.engine.base import Delta, Ending
from tandem.errors import EngineError
from tandem.hooks.contract import Phase
from tandem.text.tokenizer import Tokenizer
from tandem.tracing.spans import Span
from tandem.worker.spans import LegSpans

PARENT = 0xABCDEF


class Recorder:
    """A Tracer."""

    exported = dropped = 0

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def record(self, span: Span) -> None:
        self.spans.append(span)


def bench_of(
    tokenizer: Tokenizer, phase: Phase = "decode", *, hook: bool = False
) -> tuple[Bench, list[Span]]:
    recorder = Recorder()
    spans = LegSpans(recorder, phase=phase, worker="w")
    return Bench(tokenizer, phase=phase, hook=hook, spans=spans), recorder.spans


def test_a_decode_leg_has_times_of_its_start_first_token_and_end(tokenizer: Tokenizer) -> None:
    bench, spans = bench_of(tokenizer, hook=True)
    request_id = bench.start(parent_span=PARENT)
    bench.now += 1
    bench.step(Delta(request_id, (20,), kv=KV, cached_tokens=2))
    bench.now += 2
    bench.step(delta(request_id, (21, 22), Ending.LENGTH))
    leg, transfer = spans
    assert (leg.name, leg.trace_id, leg.parent_id) == ("decode", TRACE, PARENT)
    assert (leg.began, leg.ended) == (100, 103)
    assert [(event.name, event.at) for event in leg.events] == [("first_token", 101)]
    assert leg.attributes["tandem.first_token.seconds"] == 1
    assert leg.attributes["gen_ai.usage.output_tokens"] == 3
    assert leg.attributes["gen_ai.usage.cache_read.input_tokens"] == 2
    assert leg.attributes["tandem.hook.emitted"] == 2
    assert (transfer.name, transfer.parent_id) == ("kv_transfer", leg.span_id)
    assert transfer.inside
    assert (transfer.began, transfer.ended) == (pytest.approx(101 - KV.seconds), 101)
    assert transfer.attributes["tandem.kv.bytes"] == KV.bytes


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


def test_a_prefill_leg_has_no_span_of_the_transfer_but_what_it_measured(
    tokenizer: Tokenizer,
) -> None:
    bench, spans = bench_of(tokenizer, "prefill")
    request_id = bench.start(parent_span=PARENT)
    bench.step(Delta(request_id, (20,), Ending.LENGTH, kv=KV))
    (leg,) = spans
    assert leg.name == "prefill"
    assert leg.attributes["tandem.kv.transport"] == KV.transport
    assert "gen_ai.response.finish_reasons" not in leg.attributes


def test_what_is_not_traced_makes_no_span(tokenizer: Tokenizer) -> None:
    bench, spans = bench_of(tokenizer)
    request_id = bench.start()
    bench.step(Delta(request_id, (20,), Ending.STOP, kv=KV))
    assert bench.take().closed(1)
    assert spans == []


def test_a_cancelled_leg_ends_when_the_engine_lets_go_and_says_who_cancelled(
    tokenizer: Tokenizer,
) -> None:
    bench, spans = bench_of(tokenizer)
    bench.start(parent_span=PARENT)
    bench.cancel(1, "deadline_exceeded")
    assert spans == []
    bench.now += 1
    bench.settle()
    (leg,) = spans
    assert (leg.ended, leg.error) == (101, None)
    assert leg.attributes["tandem.outcome"] == "cancelled"
    assert leg.attributes["tandem.cancelled.reason"] == "deadline_exceeded"
    assert "tandem.first_token.seconds" not in leg.attributes


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


def test_a_failed_leg_has_its_error(tokenizer: Tokenizer) -> None:
    bench, spans = bench_of(tokenizer)
    request_id = bench.start(parent_span=PARENT)
    error = EngineError("it broke")
    bench.step(Delta(request_id, (), Ending.FAILED, error=error))
    (leg,) = spans
    assert leg.error is error
    assert leg.attributes["tandem.outcome"] == "failed"
    assert leg.events == []


def test_a_refused_leg_is_a_span_too(tokenizer: Tokenizer) -> None:
    bench, spans = bench_of(tokenizer)
    bench.shell.tell(bench.core.drain)
    assert bench.start(parent_span=PARENT) == 0
    (leg,) = spans
    assert (leg.name, leg.trace_id, leg.parent_id) == ("decode", TRACE, PARENT)
    assert leg.error is not None
    assert leg.error.code == "draining"
    assert leg.attributes["tandem.outcome"] == "refused"


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
