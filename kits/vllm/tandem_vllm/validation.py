"""Which requests an engine can run at all. Pure: asked in `submit`, before anything is queued."""

from __future__ import annotations

from dataclasses import dataclass

from tandem import sampling
from tandem.engine import prompt_ids
from tandem.engine.base import EngineRequest, Role
from tandem.errors import InvalidRequestError, RequestError, UnsupportedError
from tandem.logits import embedding_bias
from tandem.token_limits import check_token_ids, context_error

MAX_TOP_LOGPROBS = 128
MOST_TEMPERATURE = 2.0
"""vLLM refuses more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBounds:
    """What a started engine can take."""

    role: Role
    context_length: int
    """Tokens of prompt and completion together."""
    vocabulary: int


def check(request: EngineRequest, bounds: EngineBounds) -> None:
    """Raises RequestError where the request can never run, naming the field."""
    asked = request.sampling
    if not request.token_ids:
        raise InvalidRequestError("the prompt is empty", param="prompt")
    prompt_ids.check(request.token_ids, bounds.vocabulary)
    check_token_ids(request.made, bounds.vocabulary, param="resume")
    before, left = len(request.context), asked.max_tokens - len(request.made)
    if error := context_error(before, left, bounds.context_length):
        raise error
    sampling.check(asked, vocabulary=bounds.vocabulary)
    if left < 1:
        raise InvalidRequestError("max_tokens leaves no token to generate", param="max_tokens")
    _check_hand_over(request, bounds.role)
    if asked.temperature > MOST_TEMPERATURE:
        raise UnsupportedError(
            f"vLLM takes temperatures up to {MOST_TEMPERATURE:g}", param="temperature"
        )
    for field in ("logprobs", "prompt_logprobs"):
        if getattr(asked, field) > MAX_TOP_LOGPROBS:
            raise UnsupportedError(f"at most {MAX_TOP_LOGPROBS} alternatives", param=field)
    if request.embedding_bias is not None:
        embedding_bias.check(request.embedding_bias, bounds.vocabulary)
    if request.lora_adapter:
        raise UnsupportedError("this engine has no LoRA adapters", param="model")


def _check_hand_over(request: EngineRequest, role: Role) -> None:
    if (role is Role.AGGREGATED) != (request.room == 0):
        raise RequestError(f"a {role.value} engine cannot take this room", param="room")
    if role is Role.DECODE and not request.kv_peer.rpartition(":")[2].isdecimal():
        raise RequestError(
            f"kv_peer must be host:port of a prefill engine, not {request.kv_peer!r}",
            param="kv_peer",
        )
