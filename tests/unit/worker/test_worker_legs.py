"""A leg's life: started, shown, held, ended; and closed exactly once, whatever ends it and wherever
its hooks judge.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from scripted_engine import LIMITS
from worker_harness import (
    KV,
    PROMPT_TOKENS,
    Bench,
    LaterHooks,
    delta,
    ids_of,
    terminate_at,
    with_logprobs,
)

from tandem.engine.base import Delta, Ending
from tandem.errors import EngineError, InvalidRequestError, KvTransferError, WorkerError
from tandem.hooks.contract import Chunk, Phase, Verdict, emit, suppress
from tandem.logits.spec import forced_token_sequence
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2

FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED
TERMINATED = worker_pb2.LegClosed.OUTCOME_TERMINATED
CANCELLED = worker_pb2.LegClosed.OUTCOME_CANCELLED
FAILED = worker_pb2.LegClosed.OUTCOME_FAILED
STOP = common_pb2.FINISH_REASON_STOP
LENGTH = common_pb2.FINISH_REASON_LENGTH


@pytest.fixture(params=["inline", "later"], autouse=True)
def _hooks_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test: with hooks that judge at once, and with ones that judge elsewhere."""
    monkeypatch.setattr(Bench, "hooks_run", request.param)


# --- decode: the ordinary way ---------------------------------------------------------------------


def test_rows_then_finish_then_closed(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(task={"want_token_ids": True})
    ids = ids_of(tokenizer, "Hello world")
    bench.step(Delta(request, ids[:1], kv=KV, cached_tokens=2))
    bench.step(delta(request, [*ids[1:], 1], Ending.STOP))
    said = bench.said
    assert said.text(101) == "Hello world"
    assert said.token_ids(101) == [*ids, 1]
    (finish,) = said.finishes(101)
    assert (finish.reason, finish.stop_reason) == (STOP, "")
    assert (finish.prompt_tokens, finish.completion_tokens) == (3, len(ids) + 1)
    assert finish.cached_tokens == 2
    assert said.closed(1).outcome == FINISHED
    assert said.order == ["sequence", "started", "sequence", "finish", "closed"]
    (started,) = said.of(1, "started")
    assert (started.kv_bytes, started.kv_seconds) == (KV.bytes, KV.seconds)
    assert bench.engine.cancelled == []
    assert len(bench.shell) == 0
    assert bench.shell.idle.is_set()


@pytest.mark.promise("S1-300")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_hook_sees_special_tokens_as_text_where_the_task_names_them(
    tokenizer: Tokenizer, phase: Phase
) -> None:
    bench = Bench(tokenizer, phase=phase)
    named = bench.start(1, task={"shown_special_tokens": [3]})
    other = bench.start(2, task={"shown_special_tokens": [2]})
    plain = bench.start(3)
    bench.step(*[delta(request, [3], Ending.LENGTH) for request in (named, other, plain)])
    seen = [bench.hook.of(request)[0].text_diff for request in (named, other, plain)]
    assert seen == ["<|im_start|>", "", ""]


def test_the_engine_is_told_whose_prefixes_are_whose(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.start(1, task={"cache_salt": "acme"})
    bench.start(2)
    assert [each.cache_salt for each in bench.engine.submitted] == ["acme", ""]


@pytest.mark.promise("S5-645")
def test_the_engine_is_told_a_requests_hints_for_its_cache(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    hints = '{"protocol_version": "0.1", "message_id": "m"}'
    bench.start(1, task={"kv_hints": hints})
    bench.start(2)
    assert [each.kv_hints for each in bench.engine.submitted] == [hints, ""]


def test_the_end_token_has_no_text_even_where_it_is_an_ordinary_word(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    word = ids_of(tokenizer, "the")
    request = bench.start(stop_token_ids=word)
    bench.step(delta(request, ids_of(tokenizer, "a")), delta(request, word, Ending.STOP))
    assert bench.said.text(101) == "a"


def test_length_is_said_to_be_length(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "ab"), Ending.LENGTH))
    assert bench.said.finishes(101)[0].reason == LENGTH


@pytest.mark.promise("S0-024")
@pytest.mark.parametrize("want_text", [True, False])
def test_the_hook_runs_whatever_channel_the_client_reads(
    tokenizer: Tokenizer, want_text: bool
) -> None:
    bench = Bench(tokenizer)
    request = bench.start(task={"want_text": want_text, "want_token_ids": True})
    ids = ids_of(tokenizer, "hello")
    bench.step(delta(request, ids, Ending.LENGTH))
    assert bench.hook.calls[0].text_diff == "hello"
    assert bench.said.text(101) == ("hello" if want_text else "")
    assert bench.said.token_ids(101) == ids


def test_log_probabilities_travel_flattened_with_their_row(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(logprobs=2)
    bench.step(with_logprobs(request, [20, 21], Ending.LENGTH))
    (entry,) = bench.said.logprobs(101)
    assert list(entry.token_id) == [20, 21]
    assert list(entry.logprob) == [-10.0, -10.5]
    assert entry.top_count == 2
    assert list(entry.top_token_id) == [20, 0, 21, 0]
    assert list(entry.top_logprob) == [-0.5, -9.0, -0.5, -9.0]


def test_a_stop_string_ends_the_sequence_and_its_engine_request(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(stop=["END"])
    bench.step(delta(request, ids_of(tokenizer, "one END two")))
    (finish,) = bench.said.finishes(101)
    assert bench.said.text(101) == "one "
    assert (finish.reason, finish.stop_reason) == (STOP, "END")
    assert finish.completion_tokens == len(ids_of(tokenizer, "one END two"))
    assert bench.engine.cancelled == [request]
    assert bench.said.of(1, "closed") == []
    bench.step(delta(request, ids_of(tokenizer, "late")))
    assert bench.settle().closed(1).outcome == FINISHED
    assert bench.said.text(101) == "one "


def test_each_output_samples_with_a_seed_of_its_own(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    for index in range(3):
        bench.start(index + 1, output_index=index, seed=2**64 - 2)
    assert [request.sampling.seed for request in bench.engine.submitted] == [
        2**64 - 2,
        2**64 - 1,
        0,
    ]


def test_request_ids_are_never_reused(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    numbers = []
    for leg in range(1, 6):
        numbers.append(bench.start(leg))
        bench.step(delta(numbers[-1], [20], Ending.LENGTH))
    assert numbers == [1, 2, 3, 4, 5]


def test_a_text_prompt_is_tokenised_here(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.start(task={"prompt_token_ids": [], "prompt_text": "Hello world"})
    expected = tokenizer.encode("Hello world", special_tokens=True)
    assert list(bench.engine.submitted[0].token_ids) == expected


@pytest.mark.promise("S1-040", "S1-045")
@pytest.mark.parametrize(("phase", "applies"), [("prefill", False), ("decode", True)])
def test_a_generation_only_spec_stays_out_of_prefill(
    tokenizer: Tokenizer, phase: Any, applies: bool
) -> None:
    bench = Bench(tokenizer, phase=phase)
    spec = common_pb2.LogitsSpec(
        processors=[common_pb2.LogitsProcessor(name="forced_sequence", args_json="{}")],
        generation_only=True,
    )
    bench.start(task={"logits": spec})
    assert (bench.engine.submitted[0].logits is not None) is applies


@pytest.mark.promise("S3-095")
def test_an_id_that_two_routers_give_at_once_or_one_gives_again_is_three_requests(
    tokenizer: Tokenizer,
) -> None:
    """The engine keeps a processor's state by ids of the worker's own, which are never reused."""
    bench = Bench(tokenizer)
    other = bench.connect()

    def spec(token: int) -> dict[str, Any]:
        forced = common_pb2.LogitsProcessor(
            name="forced_sequence", args_json=json.dumps({"token_ids": [token]})
        )
        return {"logits": common_pb2.LogitsSpec(processors=[forced])}

    ids = [bench.start(task=spec(5)), bench.start(link=other, task=spec(6))]
    bench.step(delta(ids[0], [5], Ending.STOP))
    ids.append(bench.start(task=spec(7)))
    assert len({*ids} - {0}) == 3
    asked = [each.logits for each in bench.engine.submitted]
    assert [each and each.entries[0].args["token_ids"] for each in asked] == [[5], [6], [7]]


@pytest.mark.promise("S1-045")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_the_test_switch_reaches_every_request_in_both_phases(
    tokenizer: Tokenizer, phase: Any
) -> None:
    forced = forced_token_sequence([5, 6], 1)
    bench = Bench(tokenizer, phase=phase, forced=forced)
    bench.start()
    spec = bench.engine.submitted[0].logits
    assert spec is not None
    assert spec.entries == (forced,)


# --- hooks ----------------------------------------------------------------------------------------


@pytest.mark.promise("S0-013", "S0-014", "S0-015", "S0-022")
def test_terminate_keeps_earlier_chunks_and_cancels_once(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=terminate_at(2))
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "kept")))
    bench.step(delta(request, ids_of(tokenizer, " gone")))
    assert bench.engine.cancelled == [request]
    bench.step(delta(request, ids_of(tokenizer, " late")))
    bench.cancel(1, "test")
    said = bench.settle()
    assert said.text(101) == "kept"
    (finish,) = said.finishes(101)
    assert (finish.reason, finish.stop_reason) == (STOP, "guard")
    assert (said.closed(1).outcome, said.closed(1).reason) == (TERMINATED, "guard")
    assert bench.engine.cancelled == [request]
    assert [call.aborted for call in bench.hook.finals(request)] == [True]


@pytest.mark.promise("S0-013")
def test_terminate_on_the_last_chunk_is_the_finish(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, judge=terminate_at(1))
    request = bench.start()
    said = bench.step(delta(request, [20, 1], Ending.STOP))
    assert said.text(101) == ""
    assert said.finishes(101)[0].stop_reason == "guard"
    assert said.closed(1).outcome == TERMINATED
    assert bench.engine.cancelled == []
    assert len(bench.hook.finals(request)) == 1


@pytest.mark.promise("S0-019", "S0-020")
@pytest.mark.parametrize("verdict", [None, "text", Verdict("explode"), emit(3)])  # type: ignore[arg-type]
def test_a_failing_hook_fails_its_leg_alone(tokenizer: Tokenizer, verdict: Any) -> None:
    def judge(chunk: Chunk) -> Any:
        if chunk.request_id == 1 and chunk.text.endswith("bad"):
            if verdict is None:
                raise RuntimeError("the hook's own words")
            return verdict
        return emit(chunk.text_diff)

    bench = Bench(tokenizer, judge=judge)
    first, second = bench.start(1), bench.start(2)
    bench.step(delta(first, ids_of(tokenizer, "good")), delta(second, ids_of(tokenizer, "good")))
    bench.step(delta(first, ids_of(tokenizer, "bad")), delta(second, [1], Ending.STOP))
    said = bench.settle()
    assert said.text(101) == "good"
    assert said.finishes(101) == []
    closed = said.closed(1)
    assert (closed.outcome, closed.error.code, closed.retryable) == (FAILED, "hook_failed", False)
    assert "own words" not in closed.error.message
    assert said.closed(2).outcome == FINISHED
    assert said.text(102) == "good"
    assert bench.engine.cancelled == [first]
    assert len(bench.hook.finals(first)) == len(bench.hook.finals(second)) == 1


@pytest.mark.promise("S0-021")
def test_interleaved_requests_are_told_apart_by_request_id(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    first, second = bench.start(1), bench.start(2)
    for word in ("a", "b"):
        ids = ids_of(tokenizer, word)
        bench.step(delta(first, ids), delta(second, [*ids, *ids]))
    assert [call.text for call in bench.hook.of(first)] == ["a", "ab"]
    assert [call.text for call in bench.hook.of(second)] == ["aa", "aabb"]


@pytest.mark.promise("S0-028")
def test_suppress_on_one_output_leaves_the_other_untouched(tokenizer: Tokenizer) -> None:
    bench = Bench(
        tokenizer,
        judge=lambda chunk: suppress() if chunk.output_index == 0 else emit(chunk.text_diff),
    )
    first, second = bench.start(1), bench.start(2, output_index=1)
    ids = ids_of(tokenizer, "text")
    said = bench.step(delta(first, ids, Ending.LENGTH), delta(second, ids, Ending.LENGTH))
    assert (said.rows(101), said.text(102)) == ([], "text")
    assert [said.closed(leg).outcome for leg in (1, 2)] == [FINISHED, FINISHED]
    assert said.finishes(101)[0].completion_tokens == len(ids)


@pytest.mark.promise("S0-029")
@pytest.mark.parametrize("terminating", [0, 1])
@pytest.mark.parametrize("sibling_ends", [False, True])
def test_terminate_withholds_the_siblings_of_that_step_and_later(
    tokenizer: Tokenizer, terminating: int, sibling_ends: bool
) -> None:
    bench = Bench(tokenizer, judge=terminate_at(2, request_id=terminating + 1))
    requests = [bench.start(1), bench.start(2, output_index=1)]
    stranger = bench.start(3)
    ids = ids_of(tokenizer, "x")
    bench.step(*(delta(request, ids) for request in (*requests, stranger)))
    sibling = 1 - terminating
    ends: list[Ending | None] = [None, None]
    ends[sibling] = Ending.LENGTH if sibling_ends else None
    bench.step(
        *(delta(request, ids, end) for request, end in zip(requests, ends, strict=True)),
        delta(stranger, ids),
    )
    said = bench.settle()
    bench.step(*(delta(request, ids) for request in requests))
    assert (said.text(101), said.text(102), said.text(103)) == ("x", "x", "xx")
    assert said.closed(terminating + 1).outcome == TERMINATED
    (verdict,) = said.of(terminating + 1, "verdict")
    assert (verdict.terminate, verdict.prompt_tokens) == (True, PROMPT_TOKENS)
    assert said.finishes(101 + sibling) == []
    assert said.of(sibling + 1, "closed") == []
    bench.cancel(sibling + 1, "terminated")
    assert bench.take().closed(sibling + 1).outcome == CANCELLED
    assert [len(bench.hook.finals(request)) for request in requests] == [1, 1]
    assert len(bench.shell) == 1


def test_a_terminated_output_counts_up_to_the_chunk_that_it_was_ended_at(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far the engine is ahead of its hooks is chance, and no part of the answer."""
    monkeypatch.setattr(Bench, "hooks_run", "later")
    bench = Bench(tokenizer, judge=terminate_at(2))
    request = bench.start()
    for _ in range(5):
        bench.shell.on_step(bench.engine.note([delta(request, ids_of(tokenizer, "x"))]))
    assert bench.later is not None
    bench.shell.on_rulings(bench.later.rulings())
    (finish,) = bench.settle().finishes(101)
    assert finish.completion_tokens == 2


# --- ends from outside ----------------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True])
def test_a_cancelled_leg_closes_once_the_engine_let_go(tokenizer: Tokenizer, started: bool) -> None:
    bench = Bench(tokenizer)
    request = bench.start()
    if started:
        bench.step(delta(request, [20]))
    bench.cancel(1, "client")
    bench.cancel(1, "client")
    assert bench.take().of(1, "closed") == []
    assert bench.engine.cancelled == [request]
    said = bench.settle()
    assert said.closed(1).outcome == CANCELLED
    (final,) = bench.hook.finals(request)
    assert final.aborted
    bench.cancel(1, "client")
    bench.release(1)
    assert len(bench.take().of(1, "closed")) == 1


def test_an_overdue_leg_fails_with_its_deadline(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    early, late = bench.start(1, timeout_ms=1000), bench.start(2, timeout_ms=5000)
    bench.now += 2
    bench.shell.tell(bench.core.tick)
    bench.shell.tell(bench.core.tick)
    assert bench.engine.cancelled == [early]
    assert bench.settle().closed(1).error.code == "deadline_exceeded"
    assert late in bench.engine.open


@pytest.mark.parametrize(("started", "retryable"), [(False, True), (True, False)])
def test_an_engine_failure_may_be_retried_only_before_the_start(
    tokenizer: Tokenizer, started: bool, retryable: bool
) -> None:
    bench = Bench(tokenizer)
    request = bench.start()
    if started:
        bench.step(delta(request, [20]))
    failed = Delta(request, (), Ending.FAILED, error=KvTransferError("lost"), retryable=True)
    closed = bench.step(failed).closed(1)
    assert (closed.error.code, closed.retryable) == ("kv_transfer_failed", retryable)
    assert [call.aborted for call in bench.hook.finals(request)] == [True]


def test_a_leg_that_its_engine_cancelled_by_itself_is_told_as_cancelled(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer)
    request = bench.start()
    closed = bench.step(Delta(request, (), Ending.CANCELLED)).closed(1)
    assert (closed.outcome, closed.HasField("error")) == (CANCELLED, False)


def test_a_dead_engine_fails_every_leg_at_once(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    requests = [bench.start(leg) for leg in (1, 2, 3)]
    bench.cancel(3, "client")
    bench.shell.tell(partial(bench.core.engine_gone, EngineError("died")))
    said = bench.take()
    assert [said.closed(leg).error.code for leg in (1, 2)] == ["engine_error", "engine_error"]
    assert all(said.closed(leg).worker_died for leg in (1, 2))
    assert said.closed(3).outcome == CANCELLED
    assert len(bench.shell) == 0
    assert [len(bench.hook.finals(request)) for request in requests] == [1, 1, 1]


def test_the_end_of_the_drain_fails_what_is_open(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start()
    bench.shell.tell(partial(bench.core.abandon, WorkerError("shut down")))
    assert bench.engine.cancelled == [request]
    closed = bench.settle().closed(1)
    assert (closed.error.code, closed.retryable) == ("worker_error", True)
    assert not closed.worker_died


def test_a_lost_router_frees_all_its_legs_and_no_others(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    other = bench.connect()
    mine = [bench.start(1), bench.start(2, hold=True)]
    kept = bench.start(1, link=other)
    bench.shell.disconnect(bench.link)
    assert bench.engine.cancelled == mine
    bench.settle()
    assert len(bench.shell) == 1
    assert [leg.link for leg in bench.core.legs] == [other.number]
    assert kept in bench.engine.open
    assert [len(bench.hook.finals(request)) for request in mine] == [1, 1]


# --- refusals -------------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"task": {"model": "other"}}, "model_not_found", "model"),
    ({"task": {"trace_id": "x"}}, "invalid_request", "trace_id"),
    ({"task": {"prompt_token_ids": []}}, "invalid_request", "prompt"),
    ({"task": {"prompt_text": "both"}}, "invalid_request", "prompt"),
    ({"task": {"prompt_token_ids": [2048]}}, "invalid_request", "prompt"),
    ({"task": {"prompt_token_ids": [1] * 4096}}, "context_length_exceeded", "max_tokens"),
    ({"max_tokens": 4094}, "context_length_exceeded", "max_tokens"),
    ({"max_tokens": 0}, "invalid_request", "max_tokens"),
    ({"stop": ["ok", ""]}, "invalid_request", "stop"),
    ({"temperature": float("nan")}, "invalid_request", "temperature"),
    ({"temperature": float("inf")}, "invalid_request", "temperature"),
    ({"top_p": 0.0}, "invalid_request", "top_p"),
    ({"top_k": 0}, "invalid_request", "top_k"),
    ({"min_p": 1.0}, "invalid_request", "min_p"),
    ({"presence_penalty": -2.5}, "invalid_request", "presence_penalty"),
    ({"repetition_penalty": 0.0}, "invalid_request", "repetition_penalty"),
    ({"logit_bias": {2048: 1.0}}, "invalid_request", "logit_bias"),
    ({"logit_bias": {1: float("-inf")}}, "invalid_request", "logit_bias"),
    ({"stop_token_ids": [2048]}, "invalid_request", "stop_token_ids"),
    ({"logprobs": 2049}, "invalid_request", "logprobs"),
    ({"timeout_ms": 0}, "invalid_request", "timeout_ms"),
    (
        {"task": {"logits": {"processors": [{"name": "x", "args_json": "[1]"}]}}},
        "invalid_request",
        "logits_processors",
    ),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED)
def test_a_bad_task_is_refused_naming_the_field(
    tokenizer: Tokenizer, fields: dict[str, Any], code: str, param: str
) -> None:
    bench = Bench(tokenizer)
    assert bench.start(**fields) == 0
    closed = bench.take().closed(1)
    assert (closed.outcome, closed.retryable) == (FAILED, False)
    assert (closed.error.code, closed.error.param) == (code, param)
    assert bench.engine.submitted == []
    assert bench.hook.calls == []
    assert len(bench.shell) == 0


def test_bytes_that_are_no_task_are_refused(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    command = worker_pb2.StartLeg(leg=1, room=1, task=b"\xff\xff")
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[command]))
    assert bench.take().closed(1).error.code == "invalid_request"


def test_what_the_engine_refuses_is_refused(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.engine.refuse = InvalidRequestError("unknown processor", param="logits_processors")
    bench.start()
    closed = bench.take().closed(1)
    assert (closed.error.param, closed.retryable) == ("logits_processors", False)


def test_a_draining_worker_starts_nothing_and_finishes_the_rest(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(1)
    bench.shell.tell(bench.core.drain)
    bench.start(2)
    closed = bench.take().closed(2)
    assert (closed.error.code, closed.retryable) == ("draining", True)
    assert bench.step(delta(request, [20], Ending.LENGTH)).closed(1).outcome == FINISHED


def test_one_leg_too_many_is_refused_and_may_go_elsewhere(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    for leg in range(1, LIMITS.max_sequences + 2):
        bench.start(leg)
    closed = bench.take().closed(LIMITS.max_sequences + 1)
    assert (closed.error.code, closed.retryable) == ("queue_full", True)


def test_a_leg_number_used_twice_is_the_routers_fault(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.start(1)
    bench.start(1)
    assert bench.link.broken.is_set()
    assert bench.link.fault == "leg 1 is open already"


def test_what_happened_is_counted(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    bench.step(Delta(bench.start(1), [20, 21], Ending.LENGTH, kv=KV))
    bench.cancel(bench.start(2) and 2, "client")
    bench.settle()
    bench.start(3, max_tokens=0)
    counters = bench.counters
    assert {outcome: count for outcome, count in counters.legs.items() if count} == {
        "finished": 1,
        "cancelled": 1,
        "failed": 1,
    }
    assert counters.tokens == 2
    assert sum(counters.steps.counts) == 2
    assert counters.transfers["nixl/ucx"].bytes == KV.bytes


# --- hooks that judge elsewhere -------------------------------------------------------------------


def _later(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, LaterHooks]:
    monkeypatch.setattr(Bench, "hooks_run", "later")
    bench = Bench(tokenizer)
    assert bench.later is not None
    return bench, bench.later


def test_the_engine_goes_on_while_verdicts_are_awaited_and_order_is_kept(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, later = _later(tokenizer, monkeypatch)
    request = bench.start()
    for word, end in (("a", None), ("b", None), ("c", Ending.LENGTH)):
        bench.shell.on_step(bench.engine.note([delta(request, ids_of(tokenizer, word), end)]))
    assert bench.link.take() is None or bench.said.text(101) == ""
    assert len(bench.shell) == 1
    bench.shell.on_rulings(later.rulings())
    said = bench.take()
    assert said.text(101) == "abc"
    assert said.closed(1).outcome == FINISHED
    assert len(bench.shell) == 0


def test_what_comes_after_a_stop_string_is_dropped_while_its_verdict_is_awaited(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, later = _later(tokenizer, monkeypatch)
    request = bench.start(stop=["END"])
    for word in ("kept", "END", "gone"):
        bench.shell.on_step(bench.engine.note([delta(request, ids_of(tokenizer, word))]))
    assert bench.engine.cancelled == [request]
    bench.shell.on_step(bench.engine.settle())
    assert len(bench.shell) == 1
    bench.shell.on_rulings(later.rulings())
    said = bench.take()
    assert said.text(101) == "kept"
    assert said.finishes(101)[0].stop_reason == "END"
    assert said.closed(1).outcome == FINISHED
    assert len(bench.hook.finals(request)) == 1


def test_a_verdict_that_comes_after_the_end_changes_nothing(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, later = _later(tokenizer, monkeypatch)
    request = bench.start()
    bench.shell.on_step(bench.engine.note([delta(request, ids_of(tokenizer, "a"))]))
    late = later.rulings()
    bench.cancel(1, "test")
    bench.shell.on_rulings(late)
    said = bench.settle()
    assert said.text(101) == ""
    assert said.closed(1).outcome == CANCELLED
    assert [call.aborted for call in bench.hook.finals(request)] == [True]


@pytest.mark.promise("S0-015")
def test_what_the_engine_brought_after_a_terminate_that_was_not_known_yet_is_dropped(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, later = _later(tokenizer, monkeypatch)
    bench.hook.judge = terminate_at(1)
    request = bench.start()
    for word in ("bad", "worse", "worst"):
        bench.shell.on_step(bench.engine.note([delta(request, ids_of(tokenizer, word))]))
    bench.shell.on_rulings(later.rulings())
    said = bench.settle()
    assert said.text(101) == ""
    assert said.closed(1).outcome == TERMINATED
    assert bench.engine.cancelled == [request]
