"""A canary's legs at a worker: they use its engine and the hand-over, and nobody else knows."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from worker_harness import KV, MODEL, TRACE, Bench, delta, recorded_spans

from tandem import canary
from tandem.engine.base import Delta, Ending
from tandem.hooks.contract import Phase
from tandem.logits.spec import forced_token_sequence
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2

pytestmark = pytest.mark.promise("S5-261")
FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED
FAILED = worker_pb2.LegClosed.OUTCOME_FAILED
PHASES: tuple[Phase, ...] = ("prefill", "decode")


@pytest.fixture(params=["inline", "later"], autouse=True)
def _hooks_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "hooks_run", request.param)


def start(bench: Bench, task: common_pb2.Task | None = None, **fields: Any) -> int:
    """Begins a canary as leg 1. Returns its request_id, or 0 where it was refused."""
    task = task or canary.task(TRACE, MODEL, 2048)
    command = worker_pb2.StartLeg(
        leg=1,
        sequence=5,
        room=1001,
        kv_peer="127.0.0.1:1",
        timeout_ms=60_000,
        task=task.SerializeToString(),
        canary=True,
    )
    command.MergeFrom(worker_pb2.StartLeg(**fields))
    before = len(bench.engine.submitted)
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[command]))
    return bench.engine.submitted[-1].request_id if len(bench.engine.submitted) > before else 0


def handed_over(request: int) -> list[Delta]:
    """What an engine brings of a canary, of either phase."""
    return [Delta(request, (20,), kv=KV), delta(request, [21], Ending.LENGTH)]


@pytest.mark.parametrize("phase", PHASES)
def test_nobody_judges_it_and_no_record_of_it_is_kept(
    tokenizer: Tokenizer, phase: Phase, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    traced, spans = recorded_spans(phase)
    bench = Bench(tokenizer, phase=phase, spans=traced)
    request = start(bench)
    for each in handed_over(request):
        bench.step(each)
    assert bench.said.closed(1).outcome == FINISHED
    counters = bench.counters
    assert (bench.hook.calls, spans, caplog.records) == ([], [], [])
    assert not any(counters.legs.values())
    assert (counters.leg_seconds.total, counters.prompt_tokens) == (0, 0)
    assert counters.transfers[KV.transport].bytes == KV.bytes
    assert len(bench.core) == 0


def test_it_gets_no_logits_processor_and_no_text(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, forced=forced_token_sequence([5, 6], 1))
    start(bench)
    (asked,) = bench.engine.submitted
    assert asked.logits is None
    assert (asked.sampling.max_tokens, asked.sampling.ignore_eos) == (2, True)
    (leg,) = bench.core.legs
    assert leg.output.text([20, 21]) == ""


def test_the_longest_canary_is_taken_and_bytes_of_a_newer_task_are_not(
    tokenizer: Tokenizer,
) -> None:
    task = canary.task(TRACE, MODEL, 2048)
    task.prompt_token_ids.extend(range(canary.MOST_PROMPT_TOKENS - len(task.prompt_token_ids)))
    task.sampling.max_tokens = canary.MOST_TOKENS
    bench = Bench(tokenizer)
    assert start(bench, task)
    newer = common_pb2.Task.FromString(task.SerializeToString() + b"\xc2\x3e\x03new")
    assert start(bench, newer, leg=2) == 0


def test_its_prompt_fits_the_smallest_vocabulary() -> None:
    assert set(canary.task(TRACE, MODEL, 1).prompt_token_ids) == {0}


@pytest.mark.promise("S5-260")
@pytest.mark.parametrize("phase", PHASES)
def test_a_worker_says_that_kv_has_moved_when_a_router_has_said_so(
    tokenizer: Tokenizer, phase: Phase
) -> None:
    """Prefill does not know whether decode could read what it handed over."""
    bench = Bench(tokenizer, phase=phase)
    bench.take()
    for each in handed_over(start(bench)):
        bench.step(each)
    assert not bench.shell.load().moved_kv
    bench.said.loads.clear()
    for _ in range(2):
        bench.shell.proved()
        bench.take()
    assert [each.moved_kv for each in bench.said.loads] == [True]
