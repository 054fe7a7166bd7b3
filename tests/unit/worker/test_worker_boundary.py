"""Whatever a request's own data or user code does, it ends that leg alone: its siblings on the same
stream go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from scripted_engine import LIMITS
from worker_harness import Bench, delta

from tandem.engine.base import Ending
from tandem.hooks.deferred import SequenceInfo, Work
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.intake import Intake

FAILED = worker_pb2.LegClosed.OUTCOME_FAILED


class OddError(Exception):
    """Of a kind that nobody expects."""


def _raise(*arguments: Any, **named: Any) -> Any:
    raise OddError("with the user's own words")


def _others_go_on(bench: Bench, first: int) -> None:
    """Leg 1 runs on, to its end, on a stream that nobody gave up."""
    said = bench.step(delta(first, [20], Ending.LENGTH))
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert not bench.link.broken.is_set()
    assert len(bench.shell) == 0


def _failed_alone(bench: Bench, first: int, code: str, *, retryable: bool) -> None:
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, code)
    assert closed.retryable is retryable
    assert "own words" not in closed.error.message
    _others_go_on(bench, first)


@pytest.mark.promise("S6-144")
def test_arguments_that_are_nested_too_deep_are_refused(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    deep = common_pb2.LogitsProcessor(name="x", args_json='{"a":' * 5_000 + "1" + "}" * 5_000)
    assert bench.start(2, task={"logits": common_pb2.LogitsSpec(processors=[deep])}) == 0
    assert bench.take().closed(2).error.param == "logits_processors"
    _failed_alone(bench, first, "invalid_request", retryable=False)


@pytest.mark.promise("S6-440")
@pytest.mark.parametrize(
    "processors",
    [
        [("min_new_tokens", '{"count": 2000000}')],
        [("min_new_tokens", '{"count": 5}'), ("max_new_tokens", '{"count": 4}')],
        [("choice", '{"texts": ["a"]}'), ("thinking_budget", '{"budget": 0}')],
    ],
    ids=lambda given: "+".join(name for name, _ in given),
)
def test_processors_that_contradict_the_request_are_refused_as_they_come(
    tokenizer: Tokenizer, processors: list[tuple[str, str]]
) -> None:
    """Whoever sends them: a router's own callers have no frontend."""
    bench = Bench(tokenizer)
    first = bench.start(1)
    named = [common_pb2.LogitsProcessor(name=name, args_json=args) for name, args in processors]
    assert bench.start(2, task={"logits": common_pb2.LogitsSpec(processors=named)}) == 0
    assert bench.take().closed(2).error.param.startswith("logits_processors[")
    _failed_alone(bench, first, "invalid_request", retryable=False)


NAN, INFINITE = float("nan"), float("inf")
TOO_MUCH: list[tuple[str, dict[str, Any]]] = [
    ("regeneration.spent_tokens", {"regeneration": {"count": 1, "spent_tokens": 2**32 - 1}}),
    ("regeneration.spent_tokens", {"regeneration": {"count": 0, "spent_tokens": 1}}),
    ("regeneration.spent_tokens", {"regeneration": {"count": 1000, "spent_tokens": 2**31}}),
    ("regeneration.count", {"regeneration": {"count": 2**32 - 1}}),
    ("extra_fields", {"extra_fields": "[]"}),
    ("extra_fields", {"extra_fields": '{"a": "' + "x" * 2**17 + '"}'}),
    ("a", {"extra_fields": '{"a": ' + "[" * 40 + "]" * 40 + "}"}),
    ("temperature", {"regeneration": {"temperature": NAN}}),
    ("temperature", {"regeneration": {"temperature": INFINITE}}),
    ("top_p", {"regeneration": {"top_p": 7.0}}),
    ("top_k", {"regeneration": {"top_k": -(2**31)}}),
    ("min_p", {"regeneration": {"min_p": -NAN}}),
    ("metadata", {"metadata": {str(key): "" for key in range(65)}}),
    ("metadata", {"metadata": {"key": "v" * 65_536}}),
    ("logits_processors", {"logits": {"processors": [{"name": "x"}] * 65}}),
    ("trace_id", {"trace_id": "\n" * 32}),
    ("tenant", {"tenant": "t" * 65}),
    ("cache_salt", {"cache_salt": "s" * 257}),
    ("kv_hints", {"kv_hints": "[]"}),
    ("kv_hints", {"kv_hints": '{"protocol_version": "0.1"}'}),
    ("kv_hints", {"kv_hints": "[" * 16_385}),
    ("kv_hints", {"kv_hints": "[" * 60_000}),
    ("model", {"model": "another"}),
    ("embedding_bias", {"embedding_bias": {"token_ids": b"\1\0\0\0"}}),
    ("embedding_bias", {"embedding_bias": {"token_ids": b"\xff" * 4, "values": b"\0" * 4}}),
    ("embedding_bias", {"embedding_bias": {"token_ids": b"\1\0\0\0", "values": b"\xff" * 4}}),
    ("embedding_bias", {"embedding_bias": {"token_ids": b"\0" * 90_000}}),
    ("shown_special_tokens", {"shown_special_tokens": [3] * 65}),
    ("shown_special_tokens", {"shown_special_tokens": [LIMITS.vocabulary]}),
    ("shown_special_tokens", {"shown_special_tokens": [3] * 100_000}),
    ("prompt", {"prompt_token_ids": [2**32 - 1]}),
    ("prompt", {"prompt_token_ids": [], "prompt_text": ""}),
]
TOO_MUCH_SAMPLING: list[tuple[str, dict[str, Any]]] = [
    ("stop", {"stop": ["s"] * 65}),
    ("stop", {"stop": ["s" * 65_537]}),
    ("stop", {"stop": [""]}),
    ("thought", {"thought": {"begin": "", "end": "e"}}),
    ("thought", {"thought": {"begin": "b"}}),
    ("thought", {"thought": {"begin": "b", "end": "e" * 257}}),
    ("thought", {"thought": {"begin": "b", "end": "e", "silent": [""]}}),
    ("thought", {"thought": {"begin": "b", "end": "e", "silent": ["s"] * 17}}),
    ("stop_token_ids", {"stop_token_ids": [1] * 1025}),
    ("stop_token_ids", {"stop_token_ids": [2**32 - 1]}),
    ("stop_words", {"stop_words": [{"token_id": []}]}),
    ("stop_words", {"stop_words": [{"token_id": [1]}, {"token_id": [2**32 - 1]}]}),
    ("stop_words", {"stop_words": [{"token_id": [1]}] * 1025}),
    ("stop_words", {"stop_words": [{"token_id": [1] * 257}]}),
    ("stop_words", {"stop_words": [{"token_id": [1] * 205}] * 5}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": 2**32 - 1}),
    ("logit_bias", {"logit_bias": {1: NAN}}),
    ("logit_bias", {"logit_bias": {2**32 - 1: 1.0}}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 2**32 - 1}),
    ("temperature", {"temperature": NAN}),
    ("top_p", {"top_p": -INFINITE}),
    ("top_k", {"top_k": 0}),
    ("frequency_penalty", {"frequency_penalty": INFINITE}),
]


@pytest.mark.promise("S6-167")
@pytest.mark.parametrize(("param", "task"), TOO_MUCH)
def test_a_task_with_what_cannot_be_is_refused_alone(
    tokenizer: Tokenizer, param: str, task: dict[str, Any]
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    assert bench.start(2, task=task) == 0
    assert bench.take().closed(2).error.param == param
    _others_go_on(bench, first)


@pytest.mark.promise("S6-167")
@pytest.mark.parametrize(("param", "sampling"), TOO_MUCH_SAMPLING)
def test_sampling_that_cannot_be_is_refused_alone(
    tokenizer: Tokenizer, param: str, sampling: dict[str, Any]
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    assert bench.start(2, **sampling) == 0
    assert bench.take().closed(2).error.param == param
    _others_go_on(bench, first)


@pytest.mark.promise("S6-167")
@pytest.mark.parametrize(
    "command",
    [
        {"sequence": 2**64 - 1},
        {"destination": 2**32 - 1},
        {"destination": 0},
        {"output_index": 2**32 - 1},
        {"room": 2**64 - 1},
        {"timeout_ms": 2**32 - 1},
        {"parent_span": 2**64 - 1},
        {"leg": 2**64 - 1},
    ],
)
def test_the_largest_numbers_of_a_leg_disturb_nobody(
    tokenizer: Tokenizer, command: dict[str, Any]
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    odd = bench.command(2, seed=2**64 - 1)
    for name, value in command.items():
        setattr(odd, name, value)
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[odd]))
    second = bench.engine.submitted[-1].request_id
    bench.step(delta(second, [20], Ending.LENGTH))
    assert len(bench.shell) == 1
    _others_go_on(bench, first)


@pytest.mark.parametrize("value", [("room", 0), ("timeout_ms", 0), ("kv_peer", "")])
def test_a_leg_without_what_it_needs_is_refused_alone(
    tokenizer: Tokenizer, value: tuple[str, Any]
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    odd = bench.command(2)
    setattr(odd, *value)
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[odd]))
    assert bench.take().closed(2).error.param == value[0]
    _others_go_on(bench, first)


@pytest.mark.promise("S6-167")
def test_a_task_that_cannot_be_read_is_refused_whatever_it_raises(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    monkeypatch.setattr(Intake, "accept", _raise)
    bench.start(2)
    _failed_alone(bench, first, "internal_error", retryable=False)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    monkeypatch.setattr(Tokenizer, "encode", _raise)
    assert bench.start(2, task={"prompt_token_ids": [], "prompt_text": "a " * 4_000_000}) == 0
    _failed_alone(bench, first, "context_length_exceeded", retryable=False)


def test_an_engine_that_does_not_take_a_request_refuses_it_whatever_it_raises(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    submit = bench.engine.submit
    monkeypatch.setattr(bench.engine, "submit", _raise)
    bench.start(2)
    monkeypatch.setattr(bench.engine, "submit", submit)
    assert bench.hook.of(2) == []
    _failed_alone(bench, first, "engine_error", retryable=True)


@pytest.mark.promise("S6-148")
@pytest.mark.parametrize("at", ["open", "submit"])
def test_hooks_that_cannot_be_asked_fail_their_leg_closed(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    hooks: Any = bench.shell._hooks
    does = getattr(hooks, at)

    def trap(given: SequenceInfo | Sequence[Work]) -> None:
        about = given.request_id if isinstance(given, SequenceInfo) else given[0].request_id
        if about == 2:
            _raise()
        does(given)

    monkeypatch.setattr(hooks, at, trap)
    second = bench.start(2)
    if at == "submit":
        bench.step(delta(second, [20]))
        assert bench.said.text(102) == ""
    assert bench.engine.cancelled == [second]
    _failed_alone(bench, first, "hook_failed", retryable=False)


def test_hooks_that_cannot_be_told_of_an_end_keep_no_leg_open(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    bench.start(2)
    monkeypatch.setattr(bench.shell._hooks, "abort", _raise)
    bench.cancel(2, "client")
    assert bench.settle().closed(2).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED
    _others_go_on(bench, first)


@pytest.mark.parametrize("hook", [False, True])
def test_output_that_cannot_be_worked_with_fails_its_leg(tokenizer: Tokenizer, hook: bool) -> None:
    bench = Bench(tokenizer, hook=hook)
    first, second = bench.start(1), bench.start(2, stop=["END"])
    odd: Any = ["no number"]
    bench.step(delta(second, odd), delta(first, [20]))
    assert bench.said.text(101) != ""
    _failed_alone(bench, first, "internal_error", retryable=False)


@pytest.mark.parametrize("hook", [False, True])
def test_a_finish_that_cannot_be_said_fails_its_leg(tokenizer: Tokenizer, hook: bool) -> None:
    bench = Bench(tokenizer, hook=hook)
    first = bench.start(1)
    second = bench.start(2)
    leg = bench.leg(second)
    assert leg is not None
    leg.spent_tokens = 2**32 - 1
    bench.step(delta(second, [20], Ending.LENGTH))
    assert bench.said.finishes(102) == []
    _failed_alone(bench, first, "internal_error", retryable=False)


def test_an_engine_that_cannot_be_told_to_cancel_disturbs_nobody(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer)
    first, second = bench.start(1), bench.start(2)
    monkeypatch.setattr(bench.engine, "cancel", _raise)
    bench.cancel(2, "client")
    bench.step(delta(second, [20], Ending.LENGTH))
    assert bench.said.closed(2).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED
    _others_go_on(bench, first)


def test_a_cancel_in_one_message_with_its_start_ends_the_leg(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    first = bench.start(1)
    cancel = worker_pb2.CancelLeg(leg=2, reason="client")
    both = worker_pb2.WorkerCommand(start=[bench.command(2)], cancel=[cancel])
    bench.shell.command(bench.link, both)
    assert bench.engine.cancelled == [2]
    assert bench.settle().closed(2).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED
    _others_go_on(bench, first)


# --- actions that fail, and rows that cannot be written ----------------------------------------


@pytest.mark.promise("S6-182")
def test_a_cancel_that_fails_is_tried_again_and_costs_nobody(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    first, second = bench.start(1), bench.start(2)
    real, bench.engine.cancel = bench.engine.cancel, _raise  # type: ignore[method-assign]
    bench.shell.command(
        bench.link,
        worker_pb2.WorkerCommand(cancel=[worker_pb2.CancelLeg(leg=2, reason="cancelled")]),
    )
    bench.engine.cancel = real  # type: ignore[method-assign]
    assert second not in bench.engine.cancelled
    bench.shell.tell(bench.core.tick)
    assert bench.engine.cancelled == [second]
    bench.shell.tell(bench.core.tick)
    assert bench.engine.cancelled == [second], "it was asked"
    assert bench.settle().closed(2).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED
    _others_go_on(bench, first)


@pytest.mark.promise("S6-182")
def test_a_cancel_that_failed_is_not_tried_again_once_the_engine_has_let_go(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer)
    first, second = bench.start(1), bench.start(2)
    real, bench.engine.cancel = bench.engine.cancel, _raise  # type: ignore[method-assign]
    bench.cancel(2, "cancelled")
    bench.engine.cancel = real  # type: ignore[method-assign]
    bench.step(delta(second, [20], Ending.LENGTH))
    bench.shell.tell(bench.core.tick)
    assert bench.engine.cancelled == []
    _others_go_on(bench, first)


@pytest.mark.promise("S6-182")
@pytest.mark.parametrize("hook", [True, False])
def test_token_ids_that_cannot_be_end_their_own_sequence(tokenizer: Tokenizer, hook: bool) -> None:
    bench = Bench(tokenizer, hook=hook)
    want = {"want_text": False, "want_token_ids": True}
    first, second = bench.start(1, task=want), bench.start(2, task=want)
    for odd in (-1, 2**32):
        bench.step(delta(first, [10]), delta(second, [11]))
        bench.step(delta(second, [12, odd]), delta(first, [13]))
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, "internal_error")
    assert bench.said.token_ids(101) == [10, 13, 10, 13]
    assert bench.said.token_ids(102) == [11]
    _others_go_on(bench, first)


@pytest.mark.promise("S6-182")
def test_a_text_that_cannot_be_written_ends_its_own_sequence(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    first, second = bench.start(1), bench.start(2)
    bench.step(delta(first, [20]), delta(second, [20]))
    odd = bench.leg(second)
    assert odd is not None
    odd.show("\ud800", [21], None)
    bench.step(delta(first, [22]))
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, "internal_error")
    assert len(bench.said.rows(101)) == 2
    assert [text for text, _ in bench.said.rows(102)][1:] == [""]
    _others_go_on(bench, first)


@pytest.mark.promise("S6-182")
def test_the_end_of_a_sequence_whose_text_cannot_be_written_does_not_fit(
    tokenizer: Tokenizer,
) -> None:
    """The frontend takes it for unreadable: the leg has ended, and the router was told."""
    bench = Bench(tokenizer, hook=False)
    first, second = bench.start(1), bench.start(2)
    odd = bench.leg(second)
    assert odd is not None
    odd.show("\ud800", [21], None)
    said = bench.step(delta(second, [22], Ending.LENGTH), delta(first, [20]))
    assert said.finishes(102)[0].rows == len(said.rows(102)) + 1
    _others_go_on(bench, first)
    assert said.finishes(101)[0].rows == len(said.rows(101))


@pytest.mark.promise("S6-182")
@pytest.mark.parametrize("ended", [False, True])
def test_a_parcel_that_cannot_be_written_ends_its_own_sequence(
    tokenizer: Tokenizer, ended: bool
) -> None:
    bench = Bench(tokenizer, hook=False)
    want = {"want_text": False, "want_token_ids": True}
    first = bench.start(1)
    second = bench.start(2, hold=True, task=want)
    bench.step(delta(second, [20, -1], Ending.LENGTH if ended else None), delta(first, [20]))
    bench.release(2)
    bench.take()
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, "internal_error")
    assert bench.said.finishes(102) == []
    _others_go_on(bench, first)
