"""What prefill decides: the one chunk is judged, never shown, and the verdict is the router's."""

from __future__ import annotations

from functools import partial

import pytest
from worker_harness import KV, PROMPT_TOKENS, Bench, delta, ids_of, terminate_at

from tandem.engine.base import Delta, Ending
from tandem.errors import EngineError
from tandem.hooks.contract import terminate
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.output import Finish
from tandem_prefill_worker.rules import PrefillRules

FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED


@pytest.mark.promise("S0-034")
def test_prefill_judges_its_one_token_and_shows_nothing(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, phase="prefill")
    request = bench.start(task={"want_report": True})
    said = bench.step(Delta(request, ids_of(tokenizer, "x"), Ending.LENGTH, kv=KV))
    (call,) = bench.hook.calls
    assert (call.phase, call.text_diff, call.is_final) == ("prefill", "x", True)
    assert said.rows(101) == said.finishes(101) == []
    assert said.order == ["report", "verdict", "closed"]
    assert not said.of(1, "verdict")[0].terminate
    assert said.closed(1).outcome == FINISHED
    (report,) = said.reports(101)
    assert (report.phase, report.worker, report.request_id) == (
        common_pb2.PHASE_PREFILL,
        "w",
        request,
    )
    assert (report.emitted, report.kv_bytes, report.kv_transport) == (1, KV.bytes, KV.transport)


@pytest.mark.promise("S0-035", "S0-038")
@pytest.mark.parametrize("spent", [0, 7])
def test_prefills_terminate_travels_as_its_verdict_with_the_tokens_that_count(
    tokenizer: Tokenizer, spent: int
) -> None:
    """`spent`: by earlier runs, which classifiers blocked."""
    bench = Bench(tokenizer, phase="prefill", judge=lambda chunk: terminate("guard"))
    again = {"count": 1, "spent_tokens": spent} if spent else {}
    said = bench.step(delta(bench.start(task={"regeneration": again}), [20], Ending.LENGTH))
    (verdict,) = said.of(1, "verdict")
    assert (verdict.terminate, verdict.reason) == (True, "guard")
    assert verdict.completion_tokens == spent + 1
    assert verdict.prompt_tokens == PROMPT_TOKENS
    assert said.closed(1).outcome == FINISHED


@pytest.mark.promise("S0-019")
def test_a_prefill_hook_that_fails_gives_no_verdict(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, phase="prefill", judge=lambda chunk: None)
    said = bench.step(delta(bench.start(), [20], Ending.LENGTH))
    assert said.of(1, "verdict") == []
    closed = said.closed(1)
    assert (closed.error.code, closed.retryable) == ("hook_failed", False)
    assert closed.error.phase == common_pb2.PHASE_PREFILL


@pytest.mark.promise("S0-035")
def test_terminate_in_prefill_leaves_the_siblings_to_their_own_verdicts(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, phase="prefill", judge=terminate_at(1, request_id=1))
    requests = [bench.start(1), bench.start(2, output_index=1)]
    ids = ids_of(tokenizer, "x")[:1]
    bench.step(*(delta(request, ids, Ending.LENGTH) for request in requests))
    said = bench.settle()
    assert [said.of(leg, "verdict")[0].terminate for leg in (1, 2)] == [True, False]
    assert [said.closed(leg).outcome for leg in (1, 2)] == [FINISHED, FINISHED]


@pytest.mark.parametrize("kv", [None, KV])
def test_the_hand_over_is_measured_and_said_to_nobody_but_in_the_report(
    tokenizer: Tokenizer, kv: object
) -> None:
    bench = Bench(tokenizer, phase="prefill", hook=False)
    said = bench.step(Delta(bench.start(), [20], Ending.LENGTH, kv=kv))  # type: ignore[arg-type]
    assert said.of(1, "started") == said.rows(101) == said.finishes(101) == []
    assert bench.counters.transfers["nixl/ucx"].bytes == (KV.bytes if kv else 0)


def test_an_engine_that_fails_in_prefill_may_be_replaced_by_another(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, phase="prefill")
    request = bench.start()
    error = EngineError("it broke")
    closed = bench.step(Delta(request, (), Ending.FAILED, error=error, retryable=True)).closed(1)
    assert closed.retryable
    assert closed.error.phase == common_pb2.PHASE_PREFILL


def test_a_prefill_whose_verdict_is_awaited_while_its_engine_dies_may_run_elsewhere(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "hooks_run", "later")
    bench = Bench(tokenizer, phase="prefill")
    request = bench.start()
    bench.shell.on_step(bench.engine.note([delta(request, [20], Ending.LENGTH)]))
    bench.shell.tell(partial(bench.core.engine_gone, EngineError("died")))
    assert bench.take().closed(1).retryable


def test_prefill_never_says_that_a_terminate_was_its_own_outcome() -> None:
    rules = PrefillRules()
    end = Finish("stop", "guard", terminated=True, withheld=True)
    assert rules.closing(end).outcome == "finished"
    assert rules.guard(streaming=True) is None
