"""Requests on their way into SGLang, and what its chunks mean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from one_case import one_case

from tandem import sockets
from tandem.engine.base import Ending, EngineRequest, EngineUnit, Role, UnitState
from tandem.errors import (
    ContextLengthError,
    ContradictionError,
    DeadlineError,
    EngineError,
    InvalidRequestError,
    KvTransferError,
    ProcessorError,
    RequestError,
    UnsupportedError,
)
from tandem.logits import embedding_bias
from tandem.logits.spec import LogitsProcessorEntry, read_entries
from tandem.v1 import common_pb2
from tandem_sglang import chunks, describe, requests, validation
from tandem_sglang.processors import Steering
from tandem_sglang.validation import EngineBounds

BOUNDS = EngineBounds(
    role=Role.DECODE,
    context_length=100,
    prompt_length=94,
    vocabulary=50,
    cannot_sample={
        "seed": "the operator has switched engine option seeded_sampling off",
        "min_p": "SGLang verifies what speculative decoding drafts without it",
    },
    scores_prompts=False,
)


def sampling(**fields: Any) -> common_pb2.SamplingParams:
    plain: dict[str, Any] = {"max_tokens": 5, "top_p": 1, "top_k": -1, "repetition_penalty": 1}
    return common_pb2.SamplingParams(**(plain | fields))


def request(**fields: Any) -> EngineRequest:
    plain: dict[str, Any] = {
        "request_id": 7,
        "token_ids": [1, 2, 3],
        "sampling": sampling(),
        "room": 9,
        "kv_peer": "10.0.0.2:8998",
    }
    return EngineRequest(**(plain | fields))


def fields_of(
    asked: EngineRequest, role: Role = Role.DECODE, steering: Steering | None = None
) -> dict[str, Any]:
    return requests.fields(
        asked,
        role=role,
        endpoint=("10.0.0.1", 8998) if role is Role.PREFILL else None,
        processor="PROCESSOR",
        steering=steering,
    )


def finished(**reason: Any) -> dict[str, Any]:
    return {"finish_reason": reason}


# --- admission


@one_case(
    ("changes", "error", "param"),
    [
        ({"token_ids": []}, InvalidRequestError, "prompt"),
        ({"token_ids": [50]}, InvalidRequestError, "prompt"),
        ({"token_ids": [-1]}, InvalidRequestError, "prompt"),
        ({"token_ids": [1] * 95}, ContextLengthError, "prompt"),
        ({"sampling": sampling(max_tokens=98)}, ContextLengthError, "max_tokens"),
        ({"sampling": sampling(max_tokens=0)}, InvalidRequestError, "max_tokens"),
        ({"sampling": sampling(temperature=-1)}, InvalidRequestError, "temperature"),
        ({"sampling": sampling(temperature=float("nan"))}, InvalidRequestError, "temperature"),
        ({"sampling": sampling(top_p=0)}, InvalidRequestError, "top_p"),
        ({"sampling": sampling(top_k=0)}, InvalidRequestError, "top_k"),
        ({"sampling": sampling(min_p=1.5)}, InvalidRequestError, "min_p"),
        ({"sampling": sampling(frequency_penalty=3)}, InvalidRequestError, "frequency_penalty"),
        ({"sampling": sampling(presence_penalty=-3)}, InvalidRequestError, "presence_penalty"),
        ({"sampling": sampling(repetition_penalty=0)}, InvalidRequestError, "repetition_penalty"),
        ({"sampling": sampling(stop_token_ids=[50])}, InvalidRequestError, "stop_token_ids"),
        ({"sampling": sampling(logit_bias={50: 1.0})}, InvalidRequestError, "logit_bias"),
        ({"sampling": sampling(logit_bias={5: 101.0})}, InvalidRequestError, "logit_bias"),
        ({"sampling": sampling(logprobs=129)}, UnsupportedError, "top_logprobs"),
        ({"sampling": sampling(prompt_logprobs=0)}, UnsupportedError, "prompt_logprobs"),
        ({"sampling": sampling(seed=1)}, UnsupportedError, "seed"),
        ({"sampling": sampling(temperature=1.0, min_p=0.1)}, UnsupportedError, "min_p"),
        (
            {"sampling": sampling(ignore_eos=True, stop_token_ids=[4])},
            UnsupportedError,
            "stop_token_ids",
        ),
        (
            {"embedding_bias": common_pb2.EmbeddingBias(token_ids=b"\x32\0\0\0", values=b"\0" * 4)},
            InvalidRequestError,
            "embedding_bias",
        ),
        ({"room": 0}, RequestError, "room"),
        ({"kv_peer": "10.0.0.2"}, RequestError, "kv_peer"),
    ],
)
def test_what_can_never_run_is_refused_at_submit_naming_the_field(
    changes: dict[str, Any], error: type[RequestError], param: str
) -> None:
    with pytest.raises(error) as refusal:
        validation.check(request(**changes), BOUNDS)
    assert refusal.value.param == param


def test_a_request_that_just_fits_is_admitted() -> None:
    validation.check(request(token_ids=[49] * 94, sampling=sampling(max_tokens=6)), BOUNDS)


@pytest.mark.promise("S6-332")
@pytest.mark.parametrize("skips", ["encoder", "decoder"])
def test_prompts_are_scored_unless_the_model_skips_layers_of_them(skips: str) -> None:
    """SGLang's scheduler would end with all that it runs."""
    asked = request(sampling=sampling(prompt_logprobs=0))
    validation.check(asked, _bounds({}))
    with pytest.raises(UnsupportedError, match="bounded replay"):
        validation.check(asked, _bounds({f"enable_{skips}_swa_bounded_replay": True}))


@pytest.mark.promise("S5-381")
@pytest.mark.parametrize(
    ("context", "capacity", "page_size", "drafts", "whole"),
    [
        (100, 1000, 1, 0, 98),
        (100, 1000, 64, 0, 98),
        (100, 1000, 1, 3, 95),
        (2000, 1000, 1, 0, 998),
        (2000, 1024, 64, 0, 896),
    ],
)
def test_the_context_is_what_sglangs_scheduler_gives_whole(
    context: int, capacity: int, page_size: int, drafts: int, whole: int
) -> None:
    """By its own arithmetic: the memory of a prompt's pages, and one page more, count as taken."""
    found = _bounds(
        {"page_size": page_size}, context=context, capacity=capacity, num_reserved_tokens=drafts
    )
    assert found.context_length == whole
    for prompt in range(1, found.prompt_length + 1):
        pages = -(-prompt // page_size) * page_size
        given = min(min(context, capacity) - 2 - prompt, capacity - pages - page_size - 1)
        assert given >= whole - prompt
        assert prompt < min(context, capacity) - 6
        assert prompt + drafts + (whole - prompt) <= context


@pytest.mark.promise("S6-422")
@pytest.mark.parametrize("cache", [{"enable_flexkv": True}, {"radix_cache_backend": "ours"}])
def test_a_key_finds_no_kv_that_a_cache_knows_by_its_tokens_alone(cache: dict[str, Any]) -> None:
    """Where keys share one cache, requests bear no salt."""
    salted, plain = request(cache_salt="acme"), request()
    validation.check(salted, _bounds({}))
    validation.check(plain, _bounds(cache))
    with pytest.raises(UnsupportedError, match=f"{next(iter(cache))}.*share_prefix_cache"):
        validation.check(salted, _bounds(cache))


@pytest.mark.promise("S5-449")
def test_min_p_is_taken_where_nothing_is_drafted() -> None:
    drawn = request(sampling=sampling(temperature=1.0, min_p=0.1))
    validation.check(drawn, _bounds({}))
    drafting = _bounds({"speculative_algorithm": "EAGLE"})
    with pytest.raises(UnsupportedError, match="speculative decoding") as refused:
        validation.check(drawn, drafting)
    assert refused.value.param == "min_p"
    validation.check(request(sampling=sampling(temperature=1.0)), drafting)


@pytest.mark.parametrize(
    ("arguments", "seeded", "why"),
    [
        ({}, True, ""),
        ({}, False, "seeded_sampling off"),
        ({"speculative_algorithm": "EAGLE"}, True, ""),
        ({"speculative_algorithm": "EAGLE"}, False, "seeded_sampling off"),
        ({"speculative_algorithm": "NGRAM"}, True, "by NGRAM drafts"),
        ({"speculative_algorithm": "DFLASH"}, True, "by DFLASH drafts"),
        ({"speculative_algorithm": "A_PLUGIN_S"}, True, "by A_PLUGIN_S drafts"),
        (
            {"speculative_algorithm": "EAGLE", "speculative_use_rejection_sampling": True},
            True,
            "speculative_use_rejection_sampling",
        ),
        (
            {"speculative_algorithm": "EAGLE3", "speculative_adaptive": True},
            True,
            "speculative_adaptive",
        ),
    ],
)
def test_a_seed_is_taken_where_it_decides_the_tokens(
    arguments: dict[str, Any], seeded: bool, why: str
) -> None:
    asked = request(sampling=sampling(temperature=1.0, seed=1))
    bounds = _bounds(arguments, seeded=seeded)
    if not why:
        validation.check(asked, bounds)
        return
    with pytest.raises(UnsupportedError, match=why) as refused:
        validation.check(asked, bounds)
    assert refused.value.param == "seed"
    validation.check(request(sampling=sampling(temperature=1.0)), bounds)


def _bounds(
    arguments: dict[str, Any],
    *,
    context: int = 100,
    capacity: int = 1000,
    num_reserved_tokens: int = 0,
    seeded: bool = True,
    units: Sequence[EngineUnit] = (),
) -> EngineBounds:
    manager = SimpleNamespace(
        context_len=context,
        model_config=SimpleNamespace(vocab_size=50),
        num_reserved_tokens=num_reserved_tokens,
    )
    resolved = {f"enable_{side}_swa_bounded_replay": False for side in ("encoder", "decoder")}
    plain = {
        "page_size": 1,
        "speculative_algorithm": None,
        "speculative_adaptive": False,
        "speculative_use_rejection_sampling": False,
    }
    launched: Any = SimpleNamespace(
        manager=manager,
        arguments=plain | resolved | arguments,
        capacity=capacity,
        version="0.0",
        units=units,
    )
    return describe.bounds(launched, role=Role.PREFILL, seeded=seeded)


@pytest.mark.promise("S5-804")
@pytest.mark.parametrize(
    ("unit", "field", "others"),
    [
        ("seeds", {"seed": 1}, {"frequency_penalty": 1.0}),
        ("penalties", {"frequency_penalty": 1.0}, {"seed": 1}),
        ("penalties", {"presence_penalty": 1.0}, {"seed": 1}),
        ("penalties", {"repetition_penalty": 1.5}, {"seed": 1}),
    ],
)
def test_a_unit_that_is_lacking_has_its_requests_refused_by_name_and_no_others(
    unit: str, field: dict[str, Any], others: dict[str, Any]
) -> None:
    lacking = EngineUnit(name=unit, promise="", state=UnitState.LACKING, lacks="sglang.srt.a.b")
    bounds = _bounds({}, units=[lacking])
    (name,) = field
    with pytest.raises(UnsupportedError, match=r"SGLang 0\.0 lacks sglang\.srt\.a\.b") as refused:
        validation.check(request(sampling=sampling(temperature=1.0, **field)), bounds)
    assert refused.value.param == name
    validation.check(request(sampling=sampling(temperature=1.0, **others)), bounds)
    validation.check(request(sampling=sampling(temperature=1.0, **field)), _bounds({}))


# --- into SGLang


def test_request_names_have_one_length_because_aborts_match_by_prefix() -> None:
    names = [requests.rid(number) for number in (1, 12, 2**63)]
    assert len({len(name) for name in names}) == 1
    assert len(set(names)) == len(names)


def test_decode_begins_its_hand_over_at_prefill_which_waits_at_its_own_endpoint() -> None:
    names = ("bootstrap_host", "bootstrap_port", "bootstrap_room")
    decode, prefill = fields_of(request()), fields_of(request(kv_peer=""), Role.PREFILL)
    assert [decode[each] for each in names] == ["10.0.0.2", 8998, 9]
    assert [prefill[each] for each in names] == ["10.0.0.1", 8998, 9]
    assert fields_of(request(room=0, kv_peer=""), Role.AGGREGATED).keys().isdisjoint(names)


@pytest.mark.parametrize("host", ["10.0.0.1", "worker-0.workers", "fd00::1"])
def test_an_endpoint_survives_its_way_through_the_router(host: str) -> None:
    assert requests.parse_endpoint(sockets.endpoint(host, 8998)) == (host, 8998)


@pytest.mark.promise("S6-155")
@pytest.mark.parametrize("role", Role)
def test_every_role_keeps_prefix_caches_apart_by_salt(role: Role) -> None:
    """Decode has a cache too where `disaggregation_decode_enable_radix_cache` is set."""
    salted = [fields_of(request(cache_salt=each), role)["cache_salt"] for each in ("a", "b", "")]
    assert len(set(salted)) == 3
    assert salted[2] is None
    assert fields_of(request(), role)["cache_salt"] is None


def test_every_sampling_field_reaches_sglang() -> None:
    made = fields_of(
        request(
            sampling=sampling(
                temperature=0.5,
                top_p=0.25,
                top_k=40,
                min_p=0.125,
                frequency_penalty=1,
                presence_penalty=-1,
                repetition_penalty=1.5,
                seed=2**64 - 1,
                stop=["ignored"],
                stop_token_ids=[4],
                logit_bias={6: -100.0},
                logprobs=2,
            )
        )
    )
    assert made["sampling_params"] == {
        "n": 1,
        "max_new_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 40,
        "min_p": 0.125,
        "frequency_penalty": 1,
        "presence_penalty": -1,
        "repetition_penalty": 1.5,
        "ignore_eos": False,
        "sampling_seed": 2**63 - 1,
        "stop_token_ids": [4],
        "logit_bias": {"6": -100.0},
    }
    assert (made["return_logprob"], made["top_logprobs_num"]) == (True, 2)


@pytest.mark.promise("S6-331")
@pytest.mark.parametrize("role", [Role.PREFILL, Role.AGGREGATED])
@pytest.mark.parametrize(("of_prompt", "of_output", "alternatives"), [(0, 4, 4), (5, 2, 5)])
def test_a_prompt_is_scored_from_its_first_token_with_the_most_alternatives(
    role: Role, of_prompt: int, of_output: int, alternatives: int
) -> None:
    made = fields_of(
        request(sampling=sampling(prompt_logprobs=of_prompt, logprobs=of_output)), role
    )
    assert (made["return_logprob"], made["logprob_start_len"]) == (True, 0)
    assert made["top_logprobs_num"] == alternatives
    made = fields_of(request(sampling=sampling(logprobs=of_output)), role)
    assert (made["logprob_start_len"], made["top_logprobs_num"]) == (-1, of_output)


@pytest.mark.promise("S6-331")
def test_decode_scores_no_prompt() -> None:
    made = fields_of(request(sampling=sampling(prompt_logprobs=5)))
    assert "return_logprob" not in made
    made = fields_of(request(sampling=sampling(prompt_logprobs=5, logprobs=2)))
    assert (made["logprob_start_len"], made["top_logprobs_num"]) == (-1, 2)


def test_requests_without_a_seed_get_different_ones() -> None:
    seeds = {fields_of(request())["sampling_params"]["sampling_seed"] for _ in range(5)}
    assert len(seeds) == 5


@pytest.mark.promise("S1-041")
def test_without_a_spec_nothing_of_sampling_changes() -> None:
    made = fields_of(request())
    assert "custom_logit_processor" not in made
    assert "custom_params" not in made["sampling_params"]


@pytest.mark.promise("S1-048")
@pytest.mark.parametrize("reads_history", [False, True])
def test_a_spec_travels_to_the_scheduler_as_names_and_json(reads_history: bool) -> None:
    entries = (LogitsProcessorEntry("ban", {"token_ids": [3, 4]}),)
    made = fields_of(request(), steering=Steering(entries, reads_history))
    assert made["custom_logit_processor"] == "PROCESSOR"
    carried = made["sampling_params"]["custom_params"]
    assert json.loads(carried[requests.SPEC_KEY]) == [["ban", {"token_ids": [3, 4]}, False]]
    assert read_entries(carried[requests.SPEC_KEY]).entries == entries
    assert carried[requests.HISTORY_KEY] is reads_history


def test_a_bias_travels_to_the_scheduler_as_text_with_and_without_processors() -> None:
    bias = common_pb2.EmbeddingBias(token_ids=b"\1\0\0\0", values=b"\xff\0\0\0")
    for entries in ((), (LogitsProcessorEntry("ban", {"token_ids": [3]}),)):
        made = fields_of(request(), steering=Steering(entries, bias=bias))
        assert made["custom_logit_processor"] == "PROCESSOR"
        carried = made["sampling_params"]["custom_params"]
        assert embedding_bias.read(carried[requests.BIAS_KEY]) == bias
        assert read_entries(carried[requests.SPEC_KEY]).entries == entries
        assert carried[requests.HISTORY_KEY] is False


def test_a_grammar_goes_to_sglangs_own_and_no_processor_is_called_for_it() -> None:
    made = fields_of(request(), steering=Steering(grammar={"regex": "a+"}))
    assert made["sampling_params"]["regex"] == "a+"
    assert "custom_logit_processor" not in made


# --- out of SGLang


def test_good_endings_are_told_apart() -> None:
    for reason, ending in (("stop", Ending.STOP), ("length", Ending.LENGTH)):
        end = chunks.end_of(finished(type=reason))
        assert end is not None
        assert (end.ending, end.error) == (ending, None)
    assert chunks.end_of({"finish_reason": None}) is None, "it runs"


@one_case(
    ("reason", "error", "retryable"),
    [
        ({"message": "Decode transfer failed for request rank=0"}, KvTransferError, True),
        ({"message": "Prefill transfer failed for request rank=0"}, KvTransferError, True),
        ({"message": "Prefill bootstrap failed for request rank=0"}, KvTransferError, True),
        ({"message": "Decode handshake failed for request rank=0"}, KvTransferError, True),
        ({"message": "too long", "status_code": 400}, InvalidRequestError, False),
        ({"message": "Aborted", "status_code": None}, EngineError, True),
        ({"message": "Abort in waiting queue"}, EngineError, True),
        ({"message": "x", "err_type": "TandemProcessorError"}, ProcessorError, False),
        ({"message": "x", "err_type": "TandemContradictionError"}, ContradictionError, False),
        ({}, EngineError, True),
    ],
)
def test_every_shape_of_abort_becomes_a_typed_error(
    reason: dict[str, Any], error: type[Exception], retryable: bool
) -> None:
    end = chunks.end_of(finished(type="abort", **reason))
    assert end is not None
    assert end.ending is Ending.FAILED
    assert type(end.error) is error
    assert end.retryable is retryable


def test_a_hand_over_failure_says_why_without_names_of_sglang() -> None:
    end = chunks.end_of(
        finished(
            type="abort",
            message="Decode transfer failed for request rank=0 decode_req.req.rid='tandem-7' "
            "decode_req.req.bootstrap_room=9 with exception "
            "KVTransferError(bootstrap_room=9): Lost connection with prefill instance",
        )
    )
    assert end is not None
    assert str(end.error) == "Decode transfer failed: Lost connection with prefill instance"


TWO_TOKENS = {
    "output_token_logprobs": [(-0.5, 4, None), (-1.0, 5, None)],
    "output_top_logprobs": [[(-0.5, 4, None), (-2.0, 6, None)], [(-1.0, 5, None)]],
}


@pytest.mark.parametrize(
    ("wanted", "top"), [(2, [[(4, -0.5), (6, -2.0)], [(5, -1.0)]]), (1, [[(4, -0.5)], [(5, -1.0)]])]
)
def test_logprobs_are_those_of_the_chunk_best_alternative_first(wanted: int, top: Any) -> None:
    """SGLang gives more where the prompt is to have more."""
    logprobs = chunks.logprobs_of(TWO_TOKENS, 2, sampling(logprobs=wanted))
    assert logprobs is not None
    assert logprobs.chosen == [-0.5, -1.0]
    assert logprobs.top == top


def test_alternatives_are_empty_where_none_were_asked_for() -> None:
    meta_info = {"output_token_logprobs": [(-0.5, 4, None)]}
    logprobs = chunks.logprobs_of(meta_info, 1, sampling(logprobs=0))
    assert logprobs is not None
    assert logprobs.top == [[]]


def test_no_logprobs_without_asking() -> None:
    assert chunks.logprobs_of({}, 1, sampling(logprobs=0)) is None
    assert chunks.logprobs_of(TWO_TOKENS, 2, sampling(prompt_logprobs=2)) is None


THREE_TOKENS = {
    "input_token_logprobs": [(None, 7, None), (-0.5, 8, None), (-1.0, 9, None)],
    "input_top_logprobs_idx_flat": [8, 3, 4, 9],
    "input_top_logprobs_val_flat": [-0.5, -2.0, -0.25, -1.0],
    "input_top_logprobs_shape": [2, 2],
}


@pytest.mark.promise("S6-331")
@pytest.mark.parametrize(
    ("wanted", "top"),
    [(2, [[(8, -0.5), (3, -2.0)], [(4, -0.25), (9, -1.0)]]), (1, [[(8, -0.5)], [(4, -0.25)]])],
)
def test_a_prompts_logprobs_leave_its_first_token_out(wanted: int, top: Any) -> None:
    prompt = chunks.prompt_logprobs_of(THREE_TOKENS, [7, 8, 9], wanted)
    assert prompt.token_ids == [7, 8, 9]
    assert (prompt.logprobs.chosen, prompt.logprobs.top) == ([-0.5, -1.0], top)


@pytest.mark.promise("S6-331")
def test_a_prompt_may_have_no_alternatives_and_a_single_token() -> None:
    none = {"input_token_logprobs": THREE_TOKENS["input_token_logprobs"]}
    assert chunks.prompt_logprobs_of(none, [7, 8, 9], 0).logprobs.top == [[], []]
    alone = {
        "input_token_logprobs": [(None, 7, None)],
        "input_top_logprobs_idx_flat": [],
        "input_top_logprobs_val_flat": [],
        "input_top_logprobs_shape": [0, 2],
    }
    for wanted in (0, 2):
        logprobs = chunks.prompt_logprobs_of(alone, [7], wanted).logprobs
        assert (logprobs.chosen, logprobs.top) == ([], [])


@pytest.mark.promise("S6-333")
@pytest.mark.parametrize(
    "missing",
    [
        {"input_token_logprobs": THREE_TOKENS["input_token_logprobs"][:2]},
        {"input_token_logprobs": []},
        {
            "input_token_logprobs": THREE_TOKENS["input_token_logprobs"][:2],
            "input_top_logprobs_idx_flat": [8, 3],
            "input_top_logprobs_val_flat": [-0.5, -2.0],
        },
        {
            "input_top_logprobs_idx_flat": [8, 3],
            "input_top_logprobs_val_flat": [-0.5, -2.0],
        },
    ],
)
def test_a_prompt_that_sglang_scored_in_part_is_an_error(missing: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="of 3 prompt tokens"):
        chunks.prompt_logprobs_of(THREE_TOKENS | missing, [7, 8, 9], 2)


def test_a_measured_hand_over_is_reported_once() -> None:
    measured = chunks.hand_over_of([(4096, 0.5, "nixl/ucx/shm")])
    assert measured is not None
    assert (measured.bytes, measured.seconds, measured.transport) == (4096, 0.5, "nixl/ucx/shm")
    assert chunks.hand_over_of([]) is None


@pytest.mark.parametrize(
    ("role", "started", "error"),
    [
        (Role.PREFILL, False, KvTransferError),
        (Role.DECODE, False, KvTransferError),
        (Role.DECODE, True, DeadlineError),
        (Role.AGGREGATED, False, DeadlineError),
    ],
)
def test_time_running_out_names_the_hand_over_only_before_the_first_token(
    role: Role, started: bool, error: type[Exception]
) -> None:
    assert type(chunks.deadline(role, started=started, seconds=1.0)) is error


# --- hints for its cache


@pytest.mark.promise("S5-645")
@pytest.mark.parametrize("role", Role)
def test_sglang_is_given_hints_for_its_cache_as_it_takes_them(role: Role) -> None:
    envelope = {"protocol_version": "0.1", "message_id": "m", "actions": []}
    assert fields_of(request(kv_hints=json.dumps(envelope)), role)["kv_hints"] == envelope
    assert "kv_hints" not in fields_of(request(), role)
