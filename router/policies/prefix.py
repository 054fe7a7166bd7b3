"""The prefix policy: the worker that would have computed all it has, and the prompt, soonest."""

from __future__ import annotations

import random

from router.policies.base import AnyCandidate, Candidate, Candidates, Draw, Prompt
from tandem.prefix_blocks import BLOCK_TOKENS

MOST_HOLDERS = 8
"""Looked at of those that hold a beginning of the prompt; more would cost each request."""
LEAST_LOADED = 2
"""Looked at of the others."""
HINT_TOKENS = BLOCK_TOKENS
"""What a session's last worker is taken to hold beyond what is known: the rest of a block, which
nobody tells of.
"""


class Prefix:
    """The smallest backlog once the prompt is there: tokens still to compute, and those of the
    prompt that its cache does not hold, for each of its slots. So a worker with the prompt's
    beginning is taken as long as it is not further behind the others than that beginning is worth.

    Looked at are those that hold the longest beginnings, the session's last, the two least loaded
    (unless other routers use them too: see LeastLoaded) and two at random. Of equals the one that
    computes the least of it, then the one that holds the least: so caches fill alike.
    """

    def __init__(self, draw: Draw = random.randrange) -> None:
        self._draw = draw

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        last = candidates.last_of(prompt.session) if prompt.session else None
        offered = dict.fromkeys(candidates.two_at_random(self._draw))
        if not candidates.shared:
            for each, _ in zip(candidates.by_load(), range(LEAST_LOADED), strict=False):
                offered[each] = None
        if prompt.blocks:
            offered.update(dict.fromkeys(candidates.holding(prompt, MOST_HOLDERS)))
        if last is not None:
            offered[last] = None
        return min(offered, key=lambda each: _rank(each, prompt, each is last))


def _rank(worker: Candidate, prompt: Prompt, hinted: bool) -> tuple[float, int, int, str]:
    """Whom to take first, by what is to be computed there."""
    tokens = worker.to_compute(prompt)
    if hinted:
        tokens = max(0, tokens - HINT_TOKENS)
    return worker.cost + tokens / worker.capacity, tokens, worker.held, worker.key
