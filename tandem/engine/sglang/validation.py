"""Which requests an engine can run at all. Pure: asked in `submit`, before anything is queued.

SGLang refuses too, but later, in another process, and on one leg alone: the other leg then waits
for a hand-over that never comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.engine.base import EngineRequest, Role
from tandem.errors import ContextLengthError, InvalidRequestError, RequestError, UnsupportedError
from tandem.v1 import common_pb2

MAX_TOP_LOGPROBS = 128
"""Alternatives of the first token that fit into a hand-over's metadata row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBounds:
    """What a started engine can take."""

    role: Role
    context_length: int
    """Tokens of prompt and completion together. SGLang may end up to two tokens before it."""
    prompt_length: int
    vocabulary: int
    seeded: bool


def check(request: EngineRequest, bounds: EngineBounds) -> None:
    """Raises RequestError where the request can never run, naming the field."""
    _check_tokens(request, bounds)
    _check_hand_over(request, bounds.role)
    for name, allowed, words in _RANGES:
        if not allowed(request.sampling):
            raise InvalidRequestError(f"{name} must be {words}", param=name)
    _check_token_fields(request.sampling, bounds.vocabulary)
    if request.sampling.HasField("seed") and not bounds.seeded:
        raise UnsupportedError(
            "seed has no effect here: the operator can set engine option seeded_sampling",
            param="seed",
        )
    if request.sampling.ignore_eos and request.sampling.stop_token_ids:
        raise UnsupportedError(
            "ignore_eos would make SGLang ignore stop_token_ids too", param="stop_token_ids"
        )
    if request.sampling.logprobs > MAX_TOP_LOGPROBS:
        raise UnsupportedError(f"at most {MAX_TOP_LOGPROBS} top_logprobs", param="top_logprobs")


def _check_tokens(request: EngineRequest, bounds: EngineBounds) -> None:
    prompt, completion = len(request.token_ids), request.sampling.max_tokens
    if prompt == 0:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    if min(request.token_ids) < 0 or max(request.token_ids) >= bounds.vocabulary:
        raise InvalidRequestError(
            f"a token id of the prompt is outside the vocabulary of {bounds.vocabulary}",
            param="prompt",
        )
    if prompt > bounds.prompt_length:
        raise ContextLengthError(
            f"{prompt} prompt tokens are more than the {bounds.prompt_length} this engine takes",
            param="prompt",
        )
    if prompt + completion > bounds.context_length:
        raise ContextLengthError(
            f"{prompt} prompt tokens and {completion} to generate are more than the context of "
            f"{bounds.context_length} tokens",
            param="max_tokens",
        )


def _check_hand_over(request: EngineRequest, role: Role) -> None:
    if role is not Role.AGGREGATED and request.room == 0:
        raise RequestError("room 0 joins nothing", param="room")
    if role is Role.DECODE and not request.kv_peer.rpartition(":")[2].isdecimal():
        raise RequestError(
            f"kv_peer must be host:port of a prefill engine, not {request.kv_peer!r}",
            param="kv_peer",
        )


def _check_token_fields(sampling: common_pb2.SamplingParams, vocabulary: int) -> None:
    for name, token_ids in (
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", sampling.logit_bias),
    ):
        if outside := [token for token in token_ids if token >= vocabulary]:
            raise InvalidRequestError(
                f"{name}: token id {outside[0]} is outside the vocabulary of {vocabulary}",
                param=name,
            )
    if any(abs(bias) > 100 or bias != bias for bias in sampling.logit_bias.values()):
        raise InvalidRequestError("logit_bias must be in [-100, 100]", param="logit_bias")


_RANGES: tuple[tuple[str, Callable[[common_pb2.SamplingParams], bool], str], ...] = (
    ("max_tokens", lambda s: s.max_tokens >= 1, "at least 1"),
    ("temperature", lambda s: 0 <= s.temperature < 1e4, "at least 0"),
    ("top_p", lambda s: 0 < s.top_p <= 1, "in (0, 1]"),
    ("top_k", lambda s: s.top_k == -1 or s.top_k >= 1, "-1 or at least 1"),
    ("min_p", lambda s: 0 <= s.min_p <= 1, "in [0, 1]"),
    ("frequency_penalty", lambda s: -2 <= s.frequency_penalty <= 2, "in [-2, 2]"),
    ("presence_penalty", lambda s: -2 <= s.presence_penalty <= 2, "in [-2, 2]"),
    ("repetition_penalty", lambda s: 0 < s.repetition_penalty <= 2, "in (0, 2]"),
)
