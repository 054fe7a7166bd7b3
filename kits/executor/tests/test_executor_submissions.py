"""What a program's request becomes for a router."""

from __future__ import annotations

import json
from array import array
from typing import Any

import numpy
import pytest
from one_case import one_case

from tandem.errors import InvalidRequestError, NoPairError, RequestError
from tandem.logits import embedding_bias
from tandem.upstream.submission import Submission
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem_executor import (
    ContextPhaseParams,
    ExecutorConfig,
    GuidedDecodingParams,
    GuideType,
    LoraConfig,
    OutputConfig,
    Request,
    RequestType,
    SamplingConfig,
    submissions,
)

VOCABULARY = 100
SERVED = router_pb2.ServedModel(
    name="tiny",
    limits=worker_pb2.Limits(context_length=64, vocabulary=VOCABULARY),
    lora_adapters=["7"],
)
STATE = common_pb2.SignedVoucher(signature=b"of a voucher without tokens").SerializeToString()
GREEDY = {"temperature": 0.0, "top_p": 1.0, "top_k": -1}


def submission(**fields: Any) -> Submission:
    """Raises RequestError where the request cannot be."""
    request = Request(**{"input_token_ids": [1, 2], "max_tokens": 3} | fields)
    asked = submissions.asked(request, ExecutorConfig())
    if asked.fault is not None:
        raise asked.fault
    return submissions.submission(7, asked.request, SERVED, ExecutorConfig(), seconds=5.0)


def test_a_model_whose_workers_have_gone_is_not_the_request_s_fault() -> None:
    request = Request([1, 2], max_tokens=3)
    gone = router_pb2.ServedModel(name="tiny")
    with pytest.raises(NoPairError):
        submissions.submission(7, request, gone, ExecutorConfig(), seconds=5.0)


@pytest.mark.promise("S5-410")
def test_a_task_id_names_an_adapter_of_the_workers() -> None:
    plain, adapted = submission(), submission(lora_config=LoraConfig(7))
    assert (plain.task.lora_adapter, adapted.task.lora_adapter) == ("", "7")
    task = common_pb2.Task.FromString(adapted.common_task() + adapted.prompts[0].task)
    assert task.lora_adapter == "7"
    long = [1] * 64
    numbers = {
        submission(input_token_ids=long, lora_config=each).prompts[0].blocks
        for each in (None, LoraConfig(7))
    }
    assert len(numbers) == 2


@pytest.mark.promise("S5-411")
@pytest.mark.parametrize(
    ("config", "code"),
    [
        (LoraConfig(8), "model_not_found"),
        (LoraConfig("7"), "invalid_request"),  # type: ignore[arg-type]
        (7, "invalid_request"),
    ],
)
def test_an_adapter_that_is_none_is_refused(config: Any, code: str) -> None:
    with pytest.raises(RequestError) as refused:
        submission(lora_config=config)
    assert refused.value.code == code


def test_a_program_s_own_weights_are_refused() -> None:
    with pytest.raises(RequestError, match=r"LoraConfig.weights is left out"):
        LoraConfig(7, object())  # type: ignore[call-arg]


def sampled(**config: Any) -> common_pb2.SamplingParams:
    return submission(sampling_config=SamplingConfig(**config)).task.sampling


@one_case(
    ("config", "expected"),
    [
        ({}, GREEDY),
        ({"temperature": 0.7}, GREEDY),
        ({"top_k": 1, "top_p": 0.5}, GREEDY | {"top_p": 0.5, "top_k": 1}),
        ({"top_k": 0, "top_p": 0.0}, GREEDY),
        ({"top_k": 5}, {"temperature": 1.0, "top_p": 1.0, "top_k": 5}),
        ({"top_p": 0.5}, {"temperature": 1.0, "top_p": 0.5, "top_k": -1}),
        ({"min_p": 0.25}, {"temperature": 1.0, "min_p": 0.25}),
        ({"top_k": 5, "temperature": 0.5, "seed": 9}, {"temperature": 0.5, "seed": 9}),
        ({"frequency_penalty": 0.5, "presence_penalty": -0.5}, {"frequency_penalty": 0.5}),
        ({"presence_penalty": -0.5}, {"presence_penalty": -0.5}),
        ({"repetition_penalty": 1.25}, {"repetition_penalty": 1.25}),
    ],
)
def test_sampling_is_greedy_unless_something_says_otherwise(
    config: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = sampled(**config)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.HasField("seed") is ("seed" in config)


def test_what_is_not_asked_for_is_off() -> None:
    found = submission()
    assert not found.task.HasField("logits")
    assert not found.task.sampling.HasField("logprobs")
    assert found.task.sampling.repetition_penalty == 1.0
    assert (found.submit.priority, found.task.cache_salt) == (0, "")
    assert (found.task.want_token_ids, found.task.want_report) == (True, False)


@pytest.mark.parametrize(("priority", "wire"), [(0.0, -1000), (0.5, 0), (1.0, 1000), (0.501, 2)])
def test_a_priority_keeps_its_order(priority: float, wire: int) -> None:
    assert submission(priority=priority).submit.priority == wire


def processors(found: Submission) -> list[tuple[str, Any]]:
    """Names and arguments, as they travel."""
    return [(each.name, json.loads(each.args_json)) for each in found.task.logits.processors]


@pytest.mark.parametrize(
    ("guide_type", "guide", "name", "args"),
    [
        (GuideType.JSON, None, "json_schema", {"schema": {"type": ["object", "array"]}}),
        (GuideType.JSON_SCHEMA, '{"enum": [1]}', "json_schema", {"schema": {"enum": [1]}}),
        (GuideType.REGEX, "a|b", "regex", {"pattern": "a|b"}),
        (GuideType.EBNF_GRAMMAR, 'root ::= "a"', "ebnf", {"grammar": 'root ::= "a"'}),
    ],
)
def test_a_guide_is_a_form_of_answers_which_ends_by_itself(
    guide_type: GuideType, guide: str | None, name: str, args: dict[str, Any]
) -> None:
    found = submission(guided_decoding_params=GuidedDecodingParams(guide_type, guide))
    assert processors(found) == [(name, args)]
    assert not found.task.sampling.ignore_eos


def test_processors_come_in_the_order_in_which_they_apply() -> None:
    found = submission(
        guided_decoding_params=GuidedDecodingParams(GuideType.REGEX, "a"),
        bad_words=[[1, 2], numpy.array([3])],
        end_id=4,
        client_id=5,
        logits_post_processor_name="mine",
        sampling_config=SamplingConfig(no_repeat_ngram_size=6, min_tokens=2),
    )
    assert processors(found) == [
        ("regex", {"pattern": "a"}),
        ("banned_sequences", {"sequences": [[1, 2], [3]]}),
        ("no_repeat_ngram", {"size": 6}),
        ("min_new_tokens", {"count": 2, "eos_token_ids": [4]}),
        ("mine", {"request_id": 7, "client_id": 5}),
    ]


@pytest.mark.promise("S6-441")
def test_more_tokens_at_least_than_at_most_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="at least 4 tokens are asked for, and at most 3"):
        submission(max_tokens=3, end_id=4, sampling_config=SamplingConfig(min_tokens=4))


@pytest.mark.promise("S6-445")
def test_stop_words_wait_for_the_least_tokens_where_nothing_else_ends() -> None:
    found = submission(stop_words=[[5]], sampling_config=SamplingConfig(min_tokens=2))
    assert processors(found) == [("min_new_tokens", {"count": 2})]


@pytest.mark.parametrize("make", [list, numpy.array])
def test_a_bias_and_a_prompt_may_be_arrays(make: Any) -> None:
    bias = [0.0] * VOCABULARY
    bias[3] = -2.5
    found = submission(input_token_ids=make([4, 5]), embedding_bias=make(bias))
    common = common_pb2.Task.FromString(found.common_task())
    assert array("I", common.embedding_bias.token_ids).tolist() == [3]
    assert array("f", common.embedding_bias.values).tolist() == [-2.5]
    (prompt,) = found.prompts
    assert common_pb2.Task.FromString(prompt.task).prompt_token_ids == [4, 5]


def test_a_bias_that_is_out_of_range_means_always_and_never() -> None:
    largest = float(numpy.finfo(numpy.float32).max)
    bias = [0.0, largest, float("-inf"), -0.25, 10_000.5] + [0.0] * (VOCABULARY - 5)
    found = submission(embedding_bias=bias).task.embedding_bias
    assert array("f", found.values).tolist() == [10_000.0, -10_000.0, -0.25, 10_000.0]
    embedding_bias.check(found, VOCABULARY)
    assert not submission(embedding_bias=[0.0] * VOCABULARY).task.HasField("embedding_bias")


def test_log_probabilities_are_asked_for_without_alternatives() -> None:
    found = submission(output_config=OutputConfig(return_log_probs=True)).task.sampling
    assert found.HasField("logprobs")
    assert found.logprobs == 0


@one_case(
    ("fields", "param"),
    [
        ({"type": 1}, "type"),
        ({"type": RequestType.REQUEST_TYPE_GENERATION_ONLY}, "context_phase_params"),
        ({"context_phase_params": ContextPhaseParams([], 1, b"")}, "context_phase_params"),
        ({"type": RequestType.REQUEST_TYPE_GENERATION_ONLY,
          "context_phase_params": ContextPhaseParams([], 1)}, "context_phase_params"),
        ({"type": RequestType.REQUEST_TYPE_GENERATION_ONLY,
          "context_phase_params": ContextPhaseParams([], 1, b"\xff")}, "context_phase_params"),
        ({"type": RequestType.REQUEST_TYPE_GENERATION_ONLY,
          "context_phase_params": ContextPhaseParams([7], 1, STATE)}, "context_phase_params"),
        ({"type": RequestType.REQUEST_TYPE_GENERATION_ONLY,
          "context_phase_params": ContextPhaseParams([], 1, b"")}, "context_phase_params"),
        ({"type": RequestType.REQUEST_TYPE_CONTEXT_ONLY,
          "sampling_config": SamplingConfig(num_return_sequences=2)}, "num_return_sequences"),
        ({"end_id": VOCABULARY}, "end_id"),
        ({"stop_words": [[1], [2, VOCABULARY]]}, "stop_words"),
        ({"stop_words": [[]]}, "stop_words"),
        ({"bad_words": [[1], []]}, "bad_words"),
        ({"embedding_bias": [0.0] * 99}, "embedding_bias"),
        ({"embedding_bias": [0.0] * 99 + [float("nan")]}, "embedding_bias"),
        ({"input_token_ids": [2**40]}, "input_token_ids"),
        ({"guided_decoding_params": GuidedDecodingParams(GuideType.STRUCTURAL_TAG, "x")},
         "guided_decoding_params"),
        ({"guided_decoding_params": GuidedDecodingParams(GuideType.JSON_SCHEMA, "{")},
         "guided_decoding_params"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        submission(**fields)
    assert error.value.param == param
