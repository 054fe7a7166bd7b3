"""What vLLM puts out, as the seam says it. Pure: only attributes of vLLM's objects are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tandem.engine.base import Ending, Logprobs, PromptLogprobs
from tandem.v1 import pull_pb2

STOP, LENGTH = 0, 1
"""vLLM's FinishReason. The others are failures of the engine's."""
_LEAST = -9999.0
"""What OpenAI writes for a token that cannot be."""


def ending(reason: int | None) -> Ending | None:
    """How a request ended; None: it goes on."""
    if reason is None:
        return None
    return {STOP: Ending.STOP, LENGTH: Ending.LENGTH}.get(int(reason), Ending.FAILED)


def logprobs(lists: Any, wanted: int) -> Logprobs | None:
    """Those of vLLM's LogprobsLists, or of its LogprobsTensors as arrays: in each row the token
    itself, then the most likely ones, of which `wanted` are shown.
    """
    if lists is None:
        return None
    ids, values = lists.logprob_token_ids.tolist(), lists.logprobs.tolist()
    chosen = [_shown(row[0]) for row in values]
    top = [
        [(token, _shown(value)) for token, value in zip(row[1:], said[1:], strict=True)][:wanted]
        for row, said in zip(ids, values, strict=True)
    ]
    return Logprobs(chosen=chosen, top=top if wanted else ())


def prompt_logprobs(tensors: Any, token_ids: Sequence[int], wanted: int) -> PromptLogprobs | None:
    """Log-probabilities of a whole prompt, whose first token has none."""
    found = logprobs(tensors, wanted)
    return None if found is None else PromptLogprobs(token_ids, found)


def first_logprobs(ready: pull_pb2.PullReady) -> Logprobs | None:
    """Return the log-probabilities of prefill's token, as prefill has told them."""
    if not ready.logprob:
        return None
    top = list(zip(ready.top_token_id, ready.top_logprob, strict=True))
    return Logprobs(chosen=list(ready.logprob), top=[top] if top else ())


def _shown(value: float) -> float:
    return max(float(value), _LEAST)
