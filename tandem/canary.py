"""What a canary asks for: a hand-over of a few tokens, and nothing else.

Routers make it and workers take nothing more, so that no request of a client's can pass as one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tandem.errors import InvalidRequestError
from tandem.v1 import common_pb2, worker_pb2

MOST_PROMPT_TOKENS = 16
MOST_TOKENS = 4
_PROMPT_TOKENS = 4
_TOKENS = 2
"""The first is prefill's; with the second decode has read the KV that it was given."""


def task(trace_id: str, model: str, vocabulary: int) -> common_pb2.Task:
    """One for workers that know so many tokens."""
    prompt = [each % vocabulary for each in range(1, _PROMPT_TOKENS + 1)]
    return _task(trace_id, model, prompt, _TOKENS)


def check(command: worker_pb2.StartLeg, given: common_pb2.Task) -> None:
    """Raises InvalidRequestError for a leg that asks for more than a canary does."""
    tokens = given.sampling.max_tokens
    least = _task(given.trace_id, given.model, given.prompt_token_ids, tokens)
    short = len(given.prompt_token_ids) <= MOST_PROMPT_TOKENS and tokens <= MOST_TOKENS
    apart = command.context_only or command.task_digest
    shown = command.destination or command.parent_span
    if not short or apart or shown or given != least:
        raise InvalidRequestError("a canary asks for a few tokens and nothing else", param="canary")


def _task(trace_id: str, model: str, prompt: Iterable[int], max_tokens: int) -> common_pb2.Task:
    return common_pb2.Task(
        trace_id=trace_id,
        model=model,
        prompt_token_ids=prompt,
        sampling=common_pb2.SamplingParams(
            max_tokens=max_tokens, top_p=1.0, top_k=-1, repetition_penalty=1.0, ignore_eos=True
        ),
    )
