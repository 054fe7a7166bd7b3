"""Legs of one phase: what prefill says of the KV that it parks, and when it is freed instead; what
decode takes for the second half of a request.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any

import pytest
from worker_harness import Bench, LaterHooks, delta, terminate_at, with_logprobs

from tandem.engine.base import Delta, Ending
from tandem.errors import EngineError, ParkingFullError
from tandem.hooks.contract import suppress
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker import halves

FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED
FAILED = worker_pb2.LegClosed.OUTCOME_FAILED
LENGTH = Ending.LENGTH


@pytest.fixture(params=["inline", "later"], autouse=True)
def _hooks_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "hooks_run", request.param)


def prefill(tokenizer: Tokenizer, **fields: Any) -> Bench:
    return Bench(tokenizer, phase="prefill", park_seconds=60.0, **fields)


@pytest.mark.promise("S2-082")
def test_the_first_token_is_told_with_the_verdict_and_before_the_end(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer)
    request = bench.start(context_only=True, logprobs=0)
    assert bench.engine.submitted[0].park_seconds == 60
    said = bench.step(with_logprobs(request, [20], LENGTH))
    assert said.order == ["verdict", "parked", "closed"]
    (parked,) = said.of(1, "parked")
    assert (list(parked.token_ids), list(parked.logprobs)) == ([20], [-10.0])
    assert (len(parked.task_digest), parked.lease_ms) == (32, 60_000)
    assert said.closed(1).outcome == FINISHED
    assert bench.engine.cancelled == []


def test_without_hooks_it_is_told_too(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer, hook=False)
    request = bench.start(context_only=True)
    said = bench.step(delta(request, [20], LENGTH))
    assert [list(each.token_ids) for each in said.of(1, "parked")] == [[20]]


def test_what_a_hook_holds_back_is_not_told(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer, judge=lambda _: suppress())
    request = bench.start(context_only=True)
    (parked,) = bench.step(delta(request, [20], LENGTH)).of(1, "parked")
    assert list(parked.token_ids) == []


def test_a_terminate_tells_no_token_and_frees_the_kv(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer, judge=terminate_at(1))
    request = bench.start(context_only=True)
    said = bench.step(delta(request, [20], LENGTH))
    assert said.of(1, "parked") == []
    assert said.of(1, "verdict")[0].terminate
    assert bench.engine.cancelled == [request]


def test_a_hook_that_raises_frees_the_kv(tokenizer: Tokenizer) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("no")

    bench = prefill(tokenizer, judge=fail)
    request = bench.start(context_only=True)
    said = bench.step(delta(request, [20], LENGTH))
    assert said.closed(1).outcome == FAILED
    assert said.of(1, "parked") == []
    assert bench.engine.cancelled == [request]


@pytest.mark.parametrize("end", ["cancel", "deadline", "link"])
def test_an_end_before_the_verdict_frees_the_kv(
    tokenizer: Tokenizer, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "hooks_run", "later")
    bench = prefill(tokenizer)
    request = bench.start(context_only=True)
    bench.shell.on_step(bench.engine.note([delta(request, [20], LENGTH)]))
    match end:
        case "cancel":
            bench.cancel(1, "cancelled")
        case "deadline":
            bench.now += 61
            bench.shell.tell(bench.core.tick)
        case "link":
            bench.shell.disconnect(bench.link)
    assert bench.engine.cancelled == [request]
    assert isinstance(bench.later, LaterHooks)
    bench.shell.on_rulings(bench.later.rulings())
    assert bench.said.of(1, "parked") == []
    assert len(bench.shell) == 0


def test_a_cancel_before_the_token_is_told_to_the_engine_once(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer)
    request = bench.start(context_only=True)
    bench.cancel(1, "cancelled")
    bench.step(delta(request, [20], LENGTH))
    assert bench.engine.cancelled == [request]
    assert bench.said.of(1, "parked") == []


def test_what_an_engine_has_ended_itself_is_not_cancelled(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer)
    request = bench.start(context_only=True)
    failed = Delta(request, (), end=Ending.FAILED, error=EngineError("x"))
    assert bench.step(failed).closed(1).outcome == FAILED
    assert bench.engine.cancelled == []


def test_a_dead_engine_is_not_asked_to_free_anything(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer)
    bench.start(context_only=True)
    bench.shell.tell(partial(bench.core.engine_gone, EngineError("x")))
    assert bench.engine.cancelled == []
    assert bench.take().closed(1).worker_died


def test_an_ordinary_leg_parks_nothing(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer)
    request = bench.start()
    assert bench.engine.submitted[0].park_seconds == 0
    said = bench.step(delta(request, [20], LENGTH))
    assert said.of(1, "parked") == []


def test_a_full_parking_place_is_a_typed_refusal(tokenizer: Tokenizer) -> None:
    bench = prefill(tokenizer)
    bench.engine.refuse = ParkingFullError("x")
    bench.start(context_only=True)
    assert bench.take().closed(1).error.code == "parking_full"


@pytest.mark.parametrize(
    ("phase", "fields", "code"),
    [
        ("decode", {"context_only": True}, "unsupported_parameter"),
        ("prefill", {"task_digest": bytes(32)}, "invalid_request"),
        ("decode", {"task_digest": bytes(32)}, "voucher_refused"),
    ],
)
def test_what_a_phase_cannot_do_is_refused(
    tokenizer: Tokenizer, phase: Any, fields: Any, code: str
) -> None:
    bench = Bench(tokenizer, phase=phase, park_seconds=60.0 if phase == "prefill" else 0.0)
    assert bench.start(**fields) == 0
    assert bench.take().closed(1).error.code == code


def test_a_worker_that_may_park_nothing_refuses(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, phase="prefill")
    assert bench.start(context_only=True) == 0
    assert bench.take().closed(1).error.code == "unsupported_parameter"


def parked_for(tokenizer: Tokenizer, task: dict[str, Any], **sampling: Any) -> bytes:
    bench = prefill(tokenizer)
    request = bench.start(context_only=True, task=task, **sampling)
    (parked,) = bench.step(delta(request, [20], LENGTH)).of(1, "parked")
    digest: bytes = parked.task_digest
    return digest


TASK: dict[str, Any] = {"tenant": "a", "cache_salt": "s"}


@pytest.mark.promise("S2-082")
def test_decode_takes_the_same_request_as_its_second_half(tokenizer: Tokenizer) -> None:
    digest = parked_for(tokenizer, TASK, max_tokens=1)
    bench = Bench(tokenizer)
    other = {
        "streaming": False,
        "want_text": False,
        "trace_id": "1" * 32,
        "metadata": {"a": "b"},
        "want_token_ids": True,
    }
    bench.start(task={**TASK, **other}, task_digest=digest, max_tokens=9)
    (request,) = bench.engine.submitted
    assert request.parked
    bench.start(2, task=TASK)
    assert not bench.engine.submitted[1].parked


BIAS = common_pb2.EmbeddingBias(token_ids=bytes(4), values=bytes(4))
PROCESSOR = common_pb2.LogitsProcessor(name="min_new_tokens", args_json='{"count": 2}')


@pytest.mark.parametrize(
    ("task", "sampling"),
    [
        ({"prompt_token_ids": [10, 11, 13]}, {}),
        ({"prompt_token_ids": [10, 11]}, {}),
        ({"tenant": "b"}, {}),
        ({"cache_salt": "t"}, {}),
        ({"logits": common_pb2.LogitsSpec(processors=[PROCESSOR])}, {}),
        ({"embedding_bias": BIAS}, {}),
        ({"shown_special_tokens": [3]}, {}),
        ({}, {"seed": 5}),
        ({}, {"temperature": 0.5}),
        ({}, {"logprobs": 1}),
        ({}, {"stop_token_ids": [3]}),
        ({}, {"stop_words": [common_pb2.StopWord(token_id=[3, 4])]}),
        ({}, {"logit_bias": {3: 1.0}}),
    ],
)
def test_decode_refuses_the_second_half_of_another_request(
    tokenizer: Tokenizer, task: dict[str, Any], sampling: dict[str, Any]
) -> None:
    digest = parked_for(tokenizer, TASK)
    bench = Bench(tokenizer)
    assert bench.start(task={**TASK, **task}, task_digest=digest, **sampling) == 0
    assert bench.take().closed(1).error.code == "voucher_refused"


OF_EACH_HALF = {
    "trace_id",
    "kv_hints",
    "streaming",
    "want_text",
    "want_token_ids",
    "want_cost",
    "want_report",
    "want_external_scores",
    "extra_fields",
    "metadata",
}
"""What only names a request, or says what of it is shown."""


def test_every_field_of_a_task_is_in_the_digest_or_known_not_to_be() -> None:
    """A field that is added later is compared, unless somebody says why it need not be."""
    full = common_pb2.Task(model="m", sampling=common_pb2.SamplingParams(max_tokens=3))
    for name, field in common_pb2.Task.DESCRIPTOR.fields_by_name.items():
        changed = common_pb2.Task()
        changed.CopyFrom(full)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(changed, name)["a"] = "b"
        elif field.message_type is not None:
            first = field.message_type.fields[1 if name == "sampling" else 0]
            if first.message_type is not None:
                getattr(getattr(changed, name), first.name).add()
            else:
                value = b"abcd" if first.cpp_type == first.CPPTYPE_STRING else 9
                setattr(getattr(changed, name), first.name, value)
        elif name == "prompt_token_ids":
            continue  # hashed by themselves
        elif field.is_repeated:
            getattr(changed, name).append(9)
        elif field.cpp_type == field.CPPTYPE_BOOL:
            setattr(changed, name, True)
        else:
            setattr(changed, name, "x")
        same = digest(changed) == digest(full)
        assert same is (name in OF_EACH_HALF or name == "prompt_text"), name


@pytest.mark.parametrize("other", [(bytes(4), b"\0\0\x80?"), (b"\1\0\0\0", bytes(4))])
def test_biases_are_compared_by_tokens_and_by_values(other: tuple[bytes, bytes]) -> None:
    digests = {
        digest(common_pb2.Task(embedding_bias={"token_ids": token_ids, "values": values}))
        for token_ids, values in ((bytes(4), bytes(4)), other)
    }
    assert len(digests) == 2


def digest(task: common_pb2.Task) -> bytes:
    return halves.digest(task, array("I", [1, 2]))
