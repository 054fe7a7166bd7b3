"""What a frontend or a stranger sends the router is checked before the core sees it; what is wrong
costs that request alone.
"""

from __future__ import annotations

from typing import Any

import pytest
from one_case import one_case

from tandem.endings import Outcome
from tandem.errors import (
    MAX_MESSAGE_CHARS,
    InvalidRequestError,
    UnsupportedError,
    WorkerError,
)
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_router import translate
from tandem_router.core import events
from tandem_router.ingress import (
    MAX_NAME_CHARACTERS,
    MAX_TOKENIZER_CHARACTERS,
    MOST_AT_ONCE,
    check_message,
    read_submit,
)
from tandem_router.permissions import MOST_ADAPTER_CHARACTERS, OF_FIELDS, Permissions

TRACE = "0af7651916cd43dd8448eb211c80319c"


def _task(*processors: str, **fields: Any) -> bytes:
    named = [common_pb2.LogitsProcessor(name=name, args_json="{}") for name in processors]
    logits = common_pb2.LogitsSpec(processors=named)
    return common_pb2.Task(prompt_text="p", logits=logits, **fields).SerializeToString()


def _submit(**fields: Any) -> router_pb2.Submit:
    given = {"n": 1, "model": "m", "timeout_ms": 1000, "trace_id": TRACE, "task": _task()}
    return router_pb2.Submit(first_sequence=1, **given | fields)


def _read(submit: router_pb2.Submit, permissions: Permissions | None = None) -> events.Submit:
    return read_submit(
        1,
        submit,
        permissions=permissions or Permissions(),
        max_timeout_seconds=60.0,
        tracing=True,
    )


def _code(submit: router_pb2.Submit, permissions: Permissions | None = None) -> str:
    fault = _read(submit, permissions).fault
    return "" if fault is None else fault.code


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"trace_id": ""},
        {"model": "m" * MAX_NAME_CHARACTERS},
        {"timeout_ms": 2**32 - 1},
        {"timeout_ms": 1},
        {"task": b""},
        {"parent_span": 2**64 - 1, "prompt_tokens": 2**32 - 1, "max_tokens": 2**32 - 1},
        {"priority": -(2**31)},
        {"tokenizer_sha256": "0" * 64},
    ],
)
def test_what_can_be_is_let_in(fields: dict[str, Any]) -> None:
    assert _code(_submit(**fields)) == ""


@pytest.mark.promise("S6-166")
@one_case(
    "fields",
    [
        {"trace_id": "no trace"},
        {"trace_id": TRACE.upper()},
        {"trace_id": TRACE + "\n"},
        {"trace_id": "0" * 1_000_000},
        {"model": "m" * (MAX_NAME_CHARACTERS + 1)},
        {"tokenizer_sha256": "0" * 65},
        {"timeout_ms": 0},
        {"task": b"\xff no task"},
        {"task": b"\x32\xff\xff\xff\xff\x0f"},
        {"task": b"\x33" * 5_000},
    ],
)
def test_what_cannot_be_is_refused_alone_and_kept_nowhere(fields: dict[str, Any]) -> None:
    read = _read(_submit(**fields))
    submit = read.message
    assert read.fault is not None
    assert read.fault.code == "invalid_request"
    assert len(submit.trace_id) <= len(TRACE)
    assert len(submit.model) <= MAX_NAME_CHARACTERS
    assert len(submit.tokenizer_sha256) <= MAX_TOKENIZER_CHARACTERS


@pytest.mark.promise("S6-166")
def test_fields_that_nobody_knows_are_not_kept() -> None:
    unknown = b"\xc2\x3e" + b"\xa0\x8d\x06" + b"x" * 100_000  # field 1000, a text of so many bytes
    submit = router_pb2.Submit.FromString(_submit().SerializeToString() + unknown)
    assert submit.ByteSize() > 100_000
    assert _read(submit).message.ByteSize() < 1_000


@pytest.mark.promise("S6-143", "S5-645")
@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        (_task("forced_sequence"), {"client_logits_processors": ("forced_sequence",)}),
        (_task("json_schema", "steer"), {"client_logits_processors": ("steer",)}),
        (_task(want_report=True), {"allow_reports": True}),
        (_task(want_external_scores=True), {"allow_external_scores": True}),
        (_task(kv_hints="{}"), {"allow_kv_hints": True}),
        (_task() + _task("forced_sequence"), {"client_logits_processors": ("forced_sequence",)}),
    ],
)
def test_what_is_not_allowed_does_not_pass(asked: bytes, allowed: dict[str, Any]) -> None:
    assert _code(_submit(task=asked)) == "unsupported_parameter"
    assert _code(_submit(task=asked), Permissions(**allowed)) == ""


@pytest.mark.promise("S5-804")
@pytest.mark.parametrize(
    ("params", "used"),
    [
        ({"repetition_penalty": 1.0, "top_p": 0.5, "temperature": 1.0}, set()),
        ({"seed": 0}, {"seed"}),
        ({"min_p": 0.1, "repetition_penalty": 0.9}, {"min_p", "repetition_penalty"}),
        (
            {"frequency_penalty": -1.0, "presence_penalty": 1.0},
            {"frequency_penalty", "presence_penalty"},
        ),
    ],
)
def test_the_core_is_told_which_parameters_an_engine_may_refuse(
    params: dict[str, Any], used: set[str]
) -> None:
    task = _task(sampling=common_pb2.SamplingParams(**params))
    assert Permissions().check(task).sampling == used


def test_forms_of_answers_need_no_leave() -> None:
    assert Permissions().check(_task(*OF_FIELDS)).logits_processors == OF_FIELDS


@pytest.mark.promise("S5-221")
@pytest.mark.parametrize("names", [(), ("steer", "regex")])
def test_the_core_is_told_which_logits_processors_a_task_names(names: tuple[str, ...]) -> None:
    read = read_submit(
        1,
        _submit(task=_task(*names)),
        permissions=Permissions(client_logits_processors=("steer",)),
        max_timeout_seconds=60.0,
        tracing=False,
    )
    assert read.needs.logits_processors == frozenset(names)


@pytest.mark.promise("S5-411")
def test_the_core_is_told_which_adapter_a_task_names() -> None:
    needs = Permissions().check(_task(lora_adapter="sql"))
    assert (needs.lora_adapter, needs.logits_processors) == ("sql", frozenset())
    assert Permissions().check(_task()).lora_adapter == ""


def test_a_name_that_no_adapter_has_is_not_kept() -> None:
    longest = "x" * MOST_ADAPTER_CHARACTERS
    assert Permissions().check(_task(lora_adapter=longest)).lora_adapter == longest
    assert _code(_submit(task=_task(lora_adapter=longest + "x"))) == "invalid_request"


def test_a_refusal_quotes_little_of_a_name() -> None:
    with pytest.raises(UnsupportedError) as caught:
        Permissions().check(_task("x" * 1_000_000))
    assert len(caught.value.message) < 200
    assert caught.value.param == "logits_processors[0].name"


@pytest.mark.promise("S6-166")
@pytest.mark.parametrize("field", ["submit", "cancel"])
def test_a_message_of_too_many_is_no_frontend_s(field: str) -> None:
    items: dict[str, Any] = {
        "submit": [router_pb2.Submit()] * (MOST_AT_ONCE + 1),
        "cancel": [1] * (MOST_AT_ONCE + 1),
    }
    check_message(router_pb2.FrontendMessage(**{field: items[field][1:]}))
    with pytest.raises(InvalidRequestError):
        check_message(router_pb2.FrontendMessage(**{field: items[field]}))


# --- what workers say -----------------------------------------------------------------------------


def _closed(**fields: Any) -> events.LegClosed:
    closed = worker_pb2.LegClosed(**{"outcome": 5, **fields})
    (event,) = translate.leg_events("w", [worker_pb2.LegEvent(leg=1, closed=closed)])
    assert isinstance(event, events.LegClosed)
    return event


@pytest.mark.promise("S6-168")
def test_a_worker_lays_nothing_over_a_task_but_how_it_is_sampled_again() -> None:
    again = common_pb2.Regeneration(count=1, spent_tokens=9, temperature=0.5)
    mine = common_pb2.Task(regeneration=again)
    theirs = common_pb2.Task(regeneration=again, prompt_text="another", model="another")
    assert _closed(overlay=theirs.SerializeToString()).overlay == mine.SerializeToString()


@pytest.mark.promise("S6-168")
def test_an_overlay_that_cannot_be_read_fails_its_leg() -> None:
    event = _closed(overlay=b"\xff\xff")
    assert (event.outcome, event.overlay) == (Outcome.FAILED, b"")


@pytest.mark.promise("S6-168")
@pytest.mark.parametrize("outcome", [0, 6, 2**31 - 1, -1])
def test_an_outcome_that_nobody_knows_fails_its_leg(outcome: int) -> None:
    assert _closed(outcome=outcome).outcome is Outcome.FAILED


@pytest.mark.promise("S6-168")
def test_what_a_worker_says_in_words_is_cut() -> None:
    error = common_pb2.Error(code="x" * 9_999, message="m" * 1_000_000, param="p" * 9_999, phase=77)
    event = _closed(outcome=4, reason="r" * 20_000_000, error=error)
    assert len(event.reason) == translate.MAX_REASON_CHARACTERS
    assert event.error is not None
    assert len(event.error.message) == MAX_MESSAGE_CHARS
    assert event.error.to_proto().ByteSize() < 4_000
    assert event.error.phase == common_pb2.PHASE_UNSPECIFIED
    verdict = worker_pb2.LegVerdict(terminate=True, reason="r" * 20_000_000)
    (told,) = translate.leg_events("w", [worker_pb2.LegEvent(leg=1, verdict=verdict)])
    assert isinstance(told, events.LegVerdict)
    assert len(told.reason) == translate.MAX_REASON_CHARACTERS


def test_an_event_that_says_nothing_is_left_out() -> None:
    assert translate.leg_events("w", [worker_pb2.LegEvent(leg=2**64 - 1)]) == []


@pytest.mark.parametrize("limits", [{"context_length": 0}, {"vocabulary": 0}])
def test_a_worker_that_nothing_fits_narrows_nobody_s_limits(limits: dict[str, int]) -> None:
    fields = {"max_sequences": 1, "context_length": 1, "vocabulary": 1}
    good = worker_pb2.WorkerDescription(
        phase=common_pb2.PHASE_DECODE, limits=worker_pb2.Limits(**fields)
    )
    translate.profile(good)
    bad = worker_pb2.WorkerDescription(
        phase=common_pb2.PHASE_DECODE, limits=worker_pb2.Limits(**fields | limits)
    )
    with pytest.raises(WorkerError):
        translate.profile(bad)


@pytest.mark.parametrize(("length", "fits"), [(200_000, True), (300_000, False)])
def test_a_worker_s_description_is_bounded(length: int, fits: bool) -> None:
    description = worker_pb2.WorkerDescription(
        phase=common_pb2.PHASE_DECODE,
        limits=worker_pb2.Limits(max_sequences=1, context_length=1, vocabulary=1),
        logits_processors=["x" * length],
    )
    if fits:
        assert translate.profile(description).logits_processors
    else:
        with pytest.raises(WorkerError, match="too large"):
            translate.profile(description)
