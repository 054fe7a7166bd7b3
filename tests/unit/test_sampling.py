"""What the wire, the API and the settings take of sampling parameters, from one table."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tandem import sampling
from tandem.errors import InvalidRequestError
from tandem.hooks.classifiers.settings import RegenerateSettings
from tandem.v1 import common_pb2
from tandem_frontend.openai.requests import GenerationFields

PLAIN = {"max_tokens": 1, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0}
EDGES: dict[str, tuple[list[float], list[float]]] = {
    "temperature": ([0, 2], [-0.001, 1e4, math.inf, math.nan]),
    "top_p": ([0.001, 1], [0, -1, 1.001, math.nan]),
    "min_p": ([0, 0.999], [-0.001, 1, math.nan]),
    "frequency_penalty": ([-2, 2], [-2.001, 2.001, math.nan]),
    "presence_penalty": ([-2, 2], [-2.001, 2.001, math.nan]),
    "repetition_penalty": ([0.001, 2], [0, -1, 2.001, math.nan]),
    "max_tokens": ([1, 2**31 - 1], [0, 2**31]),
    "top_k": ([-1, 1, 2**31 - 1], [0, -2, -(2**31)]),
}
CASES = [(name, *edges) for name, edges in EDGES.items()]


def check(**fields: Any) -> None:
    sampling.check(common_pb2.SamplingParams(**{**PLAIN, **fields}), vocabulary=100)


@pytest.mark.parametrize(("name", "inside", "outside"), CASES)
def test_the_wire_takes_each_field_up_to_its_bounds(
    name: str, inside: list[float], outside: list[float]
) -> None:
    for value in inside:
        check(**{name: value})
    for value in outside:
        with pytest.raises(InvalidRequestError, match=f"^{name} must be") as refused:
            check(**{name: value})
        assert refused.value.param == name


@pytest.mark.parametrize(("name", "inside", "outside"), CASES)
def test_the_api_and_the_settings_take_no_value_that_the_wire_refuses(
    name: str, inside: list[float], outside: list[float]
) -> None:
    for struct in (GenerationFields, RegenerateSettings):
        if name not in struct.__struct_fields__:
            continue
        plain = {"model": "m"} if struct is GenerationFields else {}
        for value in outside:
            if name == "top_k" and value == 0 and struct is GenerationFields:
                continue  # the API's other word for -1
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({**plain, name: value}, struct)


def test_a_refusal_says_the_bounds() -> None:
    with pytest.raises(InvalidRequestError, match=r"^top_p must be > 0 and <= 1$"):
        check(top_p=0)
    with pytest.raises(InvalidRequestError, match=r"^min_p must be >= 0 and < 1$"):
        check(min_p=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {1: 100.5}),
        ("logit_bias", {1: -100.5}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {100: 1.0}),
        ("stop_token_ids", [99, 100]),
        ("stop_words", [{"token_id": [99]}, {"token_id": [99, 100]}]),
        ("stop_words", [{"token_id": []}]),
        ("stop", ["", "x"]),
        ("logprobs", 101),
    ],
)
def test_tokens_that_the_model_does_not_have_and_other_nonsense_are_refused(
    field: str, value: Any
) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}"):
        check(**{field: value})
    words = [{"token_id": [99, 0]}]
    check(logit_bias={99: -100.0}, stop_token_ids=[99], stop_words=words, stop=["x"], logprobs=100)
