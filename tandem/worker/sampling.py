"""Which sampling parameters can be run at all. Asked in both phases, before either engine is: a
leg whose partner refused would wait for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tandem.errors import InvalidRequestError
from tandem.v1 import common_pb2

REGENERATED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
)
"""What a regeneration may set otherwise."""
_RANGES: tuple[tuple[str, Callable[[common_pb2.SamplingParams], bool], str], ...] = (
    ("max_tokens", lambda s: s.max_tokens >= 1, "at least 1"),
    ("temperature", lambda s: 0 <= s.temperature < math.inf, "at least 0"),
    ("top_p", lambda s: 0 < s.top_p <= 1, "in (0, 1]"),
    ("top_k", lambda s: s.top_k == -1 or s.top_k >= 1, "-1 or at least 1"),
    ("min_p", lambda s: 0 <= s.min_p < 1, "in [0, 1)"),
    ("frequency_penalty", lambda s: -2 <= s.frequency_penalty <= 2, "in [-2, 2]"),
    ("presence_penalty", lambda s: -2 <= s.presence_penalty <= 2, "in [-2, 2]"),
    ("repetition_penalty", lambda s: 0 < s.repetition_penalty <= 2, "in (0, 2]"),
    ("stop", lambda s: all(s.stop), "of strings that are not empty"),
    ("logit_bias", lambda s: all(map(math.isfinite, s.logit_bias.values())), "finite"),
)


def check(sampling: common_pb2.SamplingParams, *, vocabulary: int) -> None:
    """Raises InvalidRequestError naming the field. NaN is in no range."""
    for name, allowed, words in _RANGES:
        if not allowed(sampling):
            raise InvalidRequestError(f"{name} must be {words}", param=name)
    for name, token_ids in (
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", sampling.logit_bias),
    ):
        for token_id in token_ids:
            if token_id >= vocabulary:
                raise InvalidRequestError(
                    f"{name}: token id {token_id} is outside the vocabulary of {vocabulary}",
                    param=name,
                )
    if sampling.logprobs > vocabulary:
        raise InvalidRequestError(
            f"logprobs must be at most the vocabulary, {vocabulary}", param="logprobs"
        )
