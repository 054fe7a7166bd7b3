"""Which requests an engine can run at all. Pure: asked in `submit`, before anything is queued.

SGLang refuses too, but later, in another process, and on one leg alone: the other leg then waits
for a hand-over that never comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem import sampling
from tandem.engine import request_checks
from tandem.engine.base import EngineRequest, Role
from tandem.errors import ContextLengthError, UnsupportedError
from tandem.token_limits import context_error

MAX_TOP_LOGPROBS = 128
"""Alternatives of the first token that fit into a hand-over's metadata row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBounds:
    """What a started engine can take."""

    role: Role
    context_length: int
    """Tokens of prompt and completion together, all of which SGLang gives."""
    prompt_length: int
    """Tokens of the longest prompt."""
    vocabulary: int
    cannot_sample: Mapping[str, str]
    """Sampling parameters that have no effect, or not their own, each with the reason."""
    scores_prompts: bool
    """The model computes its last layers for every token of a prompt."""
    nameless: str = ""
    """SGLang's argument by which KV is known by its tokens alone, whose key's ever; empty: none."""


def check(request: EngineRequest, bounds: EngineBounds) -> None:
    """Raises RequestError where the request can never run, naming the field."""
    request_checks.check(request, bounds.role, bounds.vocabulary)
    made = len(request.made)
    prompt, completion = len(request.token_ids) + made, request.sampling.max_tokens - made
    if prompt > bounds.prompt_length:
        raise ContextLengthError(
            f"{prompt} prompt tokens are more than the {bounds.prompt_length} this engine takes",
            param="prompt",
        )
    if error := context_error(prompt, completion, bounds.context_length):
        raise error
    if request.cache_salt and bounds.nameless:
        raise UnsupportedError(
            f"keys have caches of their own, and {bounds.nameless} of this engine has one for all:"
            " the operator leaves it out, or sets share_prefix_cache"
        )
    if request.sampling.logprobs > MAX_TOP_LOGPROBS:
        raise UnsupportedError(f"at most {MAX_TOP_LOGPROBS} top_logprobs", param="top_logprobs")
    if request.sampling.HasField("prompt_logprobs") and not bounds.scores_prompts:
        raise UnsupportedError(
            "no log-probabilities of the prompt: SGLang's bounded replay skips layers for most of"
            " its tokens",
            param="prompt_logprobs",
        )
    sampling.check(request.sampling, vocabulary=bounds.vocabulary)
    for name in sampling.used(request.sampling, bounds.cannot_sample):
        raise UnsupportedError(
            f"{name} does not hold here: {bounds.cannot_sample[name]}", param=name
        )
    if request.sampling.ignore_eos and request.sampling.stop_token_ids:
        raise UnsupportedError(
            "ignore_eos would make SGLang ignore stop_token_ids too", param="stop_token_ids"
        )
