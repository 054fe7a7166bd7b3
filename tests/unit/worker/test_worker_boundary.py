"""Whatever a request's own data or user code does, it ends that leg alone: its siblings on the same
stream go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
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


FIRST = 1
"""The request of the leg beside."""


@pytest.fixture
def hook() -> bool:
    return True


@pytest.fixture
def bench(tokenizer: Tokenizer, hook: bool) -> Iterator[Bench]:
    """Whatever is done to leg 2, leg 1 runs on, to its end, on a stream that nobody gave up."""
    made = Bench(tokenizer, hook=hook)
    assert made.start(1, task={"want_token_ids": True}) == FIRST
    yield made
    said = made.step(delta(FIRST, [20], Ending.LENGTH))
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert said.finishes(101)[0].rows == len(said.rows(101))
    assert not made.link.broken.is_set()
    assert len(made.shell) == 0


def _failed(bench: Bench, code: str, *, retryable: bool) -> None:
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, code)
    assert closed.retryable is retryable
    assert "own words" not in closed.error.message


@pytest.mark.promise("S6-144")
@pytest.mark.parametrize("hook", [False])
def test_arguments_that_are_nested_too_deep_are_refused(bench: Bench) -> None:
    deep = common_pb2.LogitsProcessor(name="x", args_json='{"a":' * 5_000 + "1" + "}" * 5_000)
    assert bench.start(2, task={"logits": common_pb2.LogitsSpec(processors=[deep])}) == 0
    assert bench.take().closed(2).error.param == "logits_processors"
    _failed(bench, "invalid_request", retryable=False)


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
    bench: Bench, processors: list[tuple[str, str]]
) -> None:
    """Whoever sends them: a router's own callers have no frontend."""
    named = [common_pb2.LogitsProcessor(name=name, args_json=args) for name, args in processors]
    assert bench.start(2, task={"logits": common_pb2.LogitsSpec(processors=named)}) == 0
    assert bench.take().closed(2).error.param.startswith("logits_processors[")
    _failed(bench, "invalid_request", retryable=False)


NAN, INFINITE = float("nan"), float("inf")
# What is short enough is refused in worker_traces/refusals.txt.
TOO_MUCH: list[tuple[str, dict[str, Any]]] = [
    ("extra_fields", {"task": {"extra_fields": '{"a": "' + "x" * 2**17 + '"}'}}),
    ("a", {"task": {"extra_fields": '{"a": ' + "[" * 40 + "]" * 40 + "}"}}),
    ("min_p", {"task": {"regeneration": {"min_p": -NAN}}}),
    ("metadata", {"task": {"metadata": {str(key): "" for key in range(65)}}}),
    ("metadata", {"task": {"metadata": {"key": "v" * 65_536}}}),
    ("logits_processors", {"task": {"logits": {"processors": [{"name": "x"}] * 65}}}),
    ("trace_id", {"task": {"trace_id": "\n" * 32}}),
    *(
        ("embedding_bias", {"task": {"embedding_bias": bias}})
        for bias in (
            {"token_ids": b"\1\0\0\0"},
            {"token_ids": b"\xff" * 4, "values": b"\0" * 4},
            {"token_ids": b"\1\0\0\0", "values": b"\xff" * 4},
            {"token_ids": b"\0" * 90_000},
        )
    ),
    ("stop", {"stop": ["s" * 65_537]}),
    ("thought", {"thought": {"begin": "b", "end": "e" * 257}}),
    ("thought", {"thought": {"begin": "b", "end": "e", "silent": ["s"] * 17}}),
    ("stop_words", {"stop_words": [{"token_id": [1] * 257}]}),
    ("stop_words", {"stop_words": [{"token_id": [1] * 205}] * 5}),
    ("logit_bias", {"logit_bias": {2048: 1.0}}),
    ("logit_bias", {"logit_bias": {1: NAN}}),
    ("logit_bias", {"logit_bias": {1: -INFINITE}}),
]


@pytest.mark.promise("S6-167")
@pytest.mark.parametrize(("param", "fields"), TOO_MUCH)
def test_a_task_with_what_cannot_be_is_refused_alone(
    bench: Bench, param: str, fields: dict[str, Any]
) -> None:
    assert bench.start(2, **fields) == 0
    assert bench.take().closed(2).error.param == param


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
def test_the_largest_numbers_of_a_leg_disturb_nobody(bench: Bench, command: dict[str, Any]) -> None:
    odd = bench.command(2, seed=2**64 - 1)
    for name, value in command.items():
        setattr(odd, name, value)
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[odd]))
    second = bench.engine.submitted[-1].request_id
    bench.step(delta(second, [20], Ending.LENGTH))
    assert len(bench.shell) == 1


@pytest.mark.parametrize("value", [("room", 0), ("timeout_ms", 0), ("kv_peer", "")])
def test_a_leg_without_what_it_needs_is_refused_alone(bench: Bench, value: tuple[str, Any]) -> None:
    odd = bench.command(2)
    setattr(odd, *value)
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[odd]))
    assert bench.take().closed(2).error.param == value[0]


@pytest.mark.promise("S6-167")
def test_a_task_that_cannot_be_read_is_refused_whatever_it_raises(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Intake, "accept", _raise)
    bench.start(2)
    _failed(bench, "internal_error", retryable=False)


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenised(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "encode", _raise)
    assert bench.start(2, task={"prompt_token_ids": [], "prompt_text": "a " * 4_000_000}) == 0
    _failed(bench, "context_length_exceeded", retryable=False)


def test_an_engine_that_does_not_take_a_request_refuses_it_whatever_it_raises(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = bench.engine.submit
    monkeypatch.setattr(bench.engine, "submit", _raise)
    bench.start(2)
    monkeypatch.setattr(bench.engine, "submit", submit)
    assert bench.hook.of(2) == []
    _failed(bench, "engine_error", retryable=True)


@pytest.mark.promise("S6-148")
@pytest.mark.parametrize("at", ["open", "submit"])
def test_hooks_that_cannot_be_asked_fail_their_leg_closed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
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
    _failed(bench, "hook_failed", retryable=False)


def test_hooks_that_cannot_be_told_of_an_end_keep_no_leg_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start(2)
    monkeypatch.setattr(bench.shell._hooks, "abort", _raise)
    bench.cancel(2, "client")
    assert bench.settle().closed(2).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED


@pytest.mark.parametrize("hook", [False, True])
def test_output_that_cannot_be_worked_with_fails_its_leg(bench: Bench) -> None:
    second = bench.start(2, stop=["END"])
    odd: Any = ["no number"]
    bench.step(delta(second, odd), delta(FIRST, [20]))
    assert bench.said.text(101) != ""
    _failed(bench, "internal_error", retryable=False)


@pytest.mark.parametrize("hook", [False, True])
def test_a_finish_that_cannot_be_said_fails_its_leg(bench: Bench) -> None:
    second = bench.start(2)
    leg = bench.leg(second)
    assert leg is not None
    leg.spent_tokens = 2**32 - 1
    bench.step(delta(second, [20], Ending.LENGTH))
    assert bench.said.finishes(102) == []
    _failed(bench, "internal_error", retryable=False)


def test_a_cancel_in_one_message_with_its_start_ends_the_leg(bench: Bench) -> None:
    cancel = worker_pb2.CancelLeg(leg=2, reason="client")
    both = worker_pb2.WorkerCommand(start=[bench.command(2)], cancel=[cancel])
    bench.shell.command(bench.link, both)
    assert bench.engine.cancelled == [2]
    assert bench.settle().closed(2).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED


# --- actions that fail, and rows that cannot be written ----------------------------------------


@pytest.mark.promise("S6-182")
def test_a_cancel_that_fails_is_tried_again_and_costs_nobody(bench: Bench) -> None:
    second = bench.start(2)
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


@pytest.mark.promise("S6-182")
def test_a_cancel_that_failed_is_not_tried_again_once_the_engine_has_let_go(
    bench: Bench,
) -> None:
    second = bench.start(2)
    real, bench.engine.cancel = bench.engine.cancel, _raise  # type: ignore[method-assign]
    bench.cancel(2, "cancelled")
    bench.engine.cancel = real  # type: ignore[method-assign]
    bench.step(delta(second, [20], Ending.LENGTH))
    bench.shell.tell(bench.core.tick)
    assert bench.engine.cancelled == []


@pytest.mark.promise("S6-182")
@pytest.mark.parametrize("hook", [True, False])
def test_token_ids_that_cannot_be_end_their_own_sequence(bench: Bench) -> None:
    want = {"want_text": False, "want_token_ids": True}
    second = bench.start(2, task=want)
    for odd in (-1, 2**32):
        bench.step(delta(FIRST, [10]), delta(second, [11]))
        bench.step(delta(second, [12, odd]), delta(FIRST, [13]))
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, "internal_error")
    assert bench.said.token_ids(101) == [10, 13, 10, 13]
    assert bench.said.token_ids(102) == [11]


@pytest.mark.promise("S6-182")
@pytest.mark.parametrize("hook", [False])
def test_a_text_that_cannot_be_written_ends_its_own_sequence(bench: Bench) -> None:
    second = bench.start(2)
    bench.step(delta(FIRST, [20]), delta(second, [20]))
    odd = bench.leg(second)
    assert odd is not None
    odd.show("\ud800", [21], None)
    bench.step(delta(FIRST, [22]))
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, "internal_error")
    assert len(bench.said.rows(101)) == 2
    assert [text for text, _ in bench.said.rows(102)][1:] == [""]


@pytest.mark.promise("S6-182")
@pytest.mark.parametrize("hook", [False])
def test_the_end_of_a_sequence_whose_text_cannot_be_written_does_not_fit(
    bench: Bench,
) -> None:
    """The frontend takes it for unreadable: the leg has ended, and the router was told."""
    second = bench.start(2)
    odd = bench.leg(second)
    assert odd is not None
    odd.show("\ud800", [21], None)
    said = bench.step(delta(second, [22], Ending.LENGTH), delta(FIRST, [20]))
    assert said.finishes(102)[0].rows == len(said.rows(102)) + 1


@pytest.mark.promise("S6-182")
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("hook", [False])
def test_a_parcel_that_cannot_be_written_ends_its_own_sequence(bench: Bench, ended: bool) -> None:
    second = bench.start(2, hold=True, task={"want_text": False, "want_token_ids": True})
    bench.step(delta(second, [20, -1], Ending.LENGTH if ended else None), delta(FIRST, [20]))
    bench.release(2)
    bench.take()
    closed = bench.settle().closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, "internal_error")
    assert bench.said.finishes(102) == []
