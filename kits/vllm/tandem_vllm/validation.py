"""Which requests an engine can run at all. Pure: asked in `submit`, before anything is queued."""

from __future__ import annotations

from dataclasses import dataclass

from tandem import sampling
from tandem.engine import request_checks
from tandem.engine.base import EngineRequest, Role
from tandem.errors import InvalidRequestError, UnsupportedError
from tandem.token_limits import context_error

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
    request_checks.check(request, bounds.role, bounds.vocabulary)
    before, left = len(request.context), asked.max_tokens - len(request.made)
    if error := context_error(before, left, bounds.context_length):
        raise error
    sampling.check(asked, vocabulary=bounds.vocabulary)
    if left < 1:
        raise InvalidRequestError("max_tokens leaves no token to generate", param="max_tokens")
    if asked.temperature > MOST_TEMPERATURE:
        raise UnsupportedError(
            f"vLLM takes temperatures up to {MOST_TEMPERATURE:g}", param="temperature"
        )
    for field in ("logprobs", "prompt_logprobs"):
        if getattr(asked, field) > MAX_TOP_LOGPROBS:
            raise UnsupportedError(f"at most {MAX_TOP_LOGPROBS} alternatives", param=field)
