"""The ranges of sampling parameters: for the bodies of clients, for settings, and for the wire.

Both phases ask before their engines do: a leg whose partner refused would wait for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable
from typing import Annotated, Any, NamedTuple, get_args

from google.protobuf.message import Message
from msgspec import Meta

from tandem.errors import InvalidRequestError
from tandem.token_limits import check_token_ids
from tandem.v1 import common_pb2

MAX_INT32 = 2**31 - 1

MaxTokens = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
"""As OpenAI offers it. On the wire it may be higher."""
TopP = Annotated[float, Meta(gt=0, le=1)]
TopK = Annotated[int, Meta(ge=1, le=MAX_INT32)]
MinP = Annotated[float, Meta(ge=0, lt=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=2)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LogitBias = Annotated[float, Meta(ge=-100, le=100)]

TOP_K_OFF = -1
MOST_EMBEDDING_BIAS = 1e4
"""The most, and its negative the least: a token that is so much less likely than another never
comes.
"""
MOST_STOP_WORD_TOKENS = 256
"""The longest stop word."""
REGENERATED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
)
"""What a regeneration may set otherwise."""


class _Range(NamedTuple):
    low: float
    high: float
    words: str


def _range(annotated: Any) -> _Range:
    """An open bound becomes the nearest float inside it, so that a check compares twice."""
    meta: Meta = get_args(annotated)[1]
    bounds = {">=": meta.ge, ">": meta.gt, "<=": meta.le, "<": meta.lt}
    low = meta.ge if meta.gt is None else math.nextafter(meta.gt, math.inf)
    high = meta.le if meta.lt is None else math.nextafter(meta.lt, -math.inf)
    assert low is not None, "both ends are bounded"
    assert high is not None, "both ends are bounded"
    words = [f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None]
    return _Range(low, high, " and ".join(words))


_TOP_K, _LOGIT_BIAS = _range(TopK), _range(LogitBias)
_RANGES = {
    "max_tokens": _range(MaxTokens),
    "temperature": _range(Annotated[float, Meta(ge=0, lt=1e4)]),
    "top_p": _range(TopP),
    "min_p": _range(MinP),
    "frequency_penalty": _range(Penalty),
    "presence_penalty": _range(Penalty),
    "repetition_penalty": _range(RepetitionPenalty),
}


def check_ranges(sampling: common_pb2.SamplingParams, *, where: str = "") -> None:
    """Raises InvalidRequestError naming the field, after `where`. NaN is in no range."""
    for name, (low, high, words) in _RANGES.items():
        if not low <= getattr(sampling, name) <= high:
            raise _outside(name, words, where)
    if sampling.top_k != TOP_K_OFF and not _TOP_K.low <= sampling.top_k <= _TOP_K.high:
        raise _outside("top_k", _TOP_K.words, where)
    for bias in sampling.logit_bias.values():
        if not _LOGIT_BIAS.low <= bias <= _LOGIT_BIAS.high:
            raise _outside("logit_bias", _LOGIT_BIAS.words, where)


def check(sampling: common_pb2.SamplingParams, *, vocabulary: int) -> None:
    """The ranges, and what the model's vocabulary bounds. Raises InvalidRequestError."""
    check_ranges(sampling)
    if not all(sampling.stop):
        raise InvalidRequestError("stop must be of strings that are not empty", param="stop")
    check_token_ids(sampling.stop_token_ids, vocabulary, param="stop_token_ids")
    if sampling.stop_words:
        check_stop_words((word.token_id for word in sampling.stop_words), vocabulary)
    check_token_ids(sampling.logit_bias, vocabulary, param="logit_bias")
    if sampling.logprobs > vocabulary:
        raise InvalidRequestError(
            f"logprobs must be at most the vocabulary, {vocabulary}", param="logprobs"
        )


def check_stop_words(words: Iterable[Collection[int]], vocabulary: int) -> None:
    """Raises InvalidRequestError for one that has no tokens, or tokens that the model does not."""
    for word in words:
        if not word:
            raise InvalidRequestError("stop_words must have tokens", param="stop_words")
        check_token_ids(word, vocabulary, param="stop_words")


def _outside(name: str, words: str, where: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} must be {words}", param=where + name)


_NEUTRAL = ("repetition_penalty", 1.0)
"""The one parameter that may say something and yet do nothing."""


def used(sampling: Message, names: Container[str]) -> list[str]:
    """Which parameters of these names a request uses, sorted. `sampling`: a SamplingParams, or a
    message with some fields of the same names.
    """
    return sorted(
        field.name
        for field, value in sampling.ListFields()
        if field.name in names and (field.name, value) != _NEUTRAL
    )
