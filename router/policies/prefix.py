"""The prefix policy: the worker that would have computed all it has, and the prompt, soonest."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf

from router.policies.base import AnyCandidate, Candidate, Candidates, Draw, Prompt, at_random
from tandem.prefix_blocks import BLOCK_TOKENS

MOST_HOLDERS = 8
"""Looked at of those that hold a beginning of the prompt; more would cost each request."""
LEAST_LOADED = 2
"""Looked at of the others."""
WORTH = 1 / 4
"""So much of the prompt must be cached for holders to be looked at where routers share workers."""
HINT_TOKENS = BLOCK_TOKENS
"""So much further behind than others a session's last worker may be: it may hold the rest of a
block, which nobody tells of, or what it has not told yet.
"""


class Prefix:
    """The smallest backlog once the prompt is there: tokens still to compute, and those of the
    prompt that its cache does not hold, for each of its slots. So a worker with the prompt's
    beginning is taken as long as it is not further behind the others than that beginning is worth.

    Looked at are those that hold the longest beginnings, the session's last, the two least loaded
    and two at random. Of equals the one that computes the least of it, then the one that holds the
    least: so caches fill alike. Where other routers use the workers too, the least loaded are left
    out, and of those with the longest beginning two are drawn, if it is long: see LeastLoaded. All
    prompts may begin alike, so that every worker holds a little of each.

    The sequences of one request go to one worker, unless it is further behind for that than the
    prompt is long: that much it saves to compute it once.
    """

    def __init__(self, draw: Draw = at_random) -> None:
        self._draw = draw

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        if len(candidates) == 1:
            return next(candidates.by_load())
        shared = candidates.shared
        offered = dict.fromkeys(candidates.two_at_random(self._draw), 0)
        if not shared:
            offered |= dict.fromkeys(islice(candidates.by_load(), LEAST_LOADED), 0)
        if prompt.blocks:
            holders = candidates.holding(prompt, MOST_HOLDERS)
            offered |= dict.fromkeys(self._drawn(holders, prompt) if shared else holders, 0)
        if prompt.session and (last := candidates.last_of(prompt.session)) is not None:
            offered[last] = HINT_TOKENS
        sibling = candidates.last_sibling(prompt.request) if prompt.request else None
        if sibling is not None and sibling.to_compute(prompt) < prompt.tokens:
            offered[sibling] = prompt.tokens
        least: tuple[float, int] = inf, 0
        equals: list[AnyCandidate] = []
        for each, hint in offered.items():
            tokens = each.to_compute(prompt) - hint
            rank = each.cost + tokens / each.capacity, tokens
            if rank < least:
                least, equals = rank, [each]
            elif rank == least:
                equals.append(each)
        return equals[0] if len(equals) == 1 else min(equals, key=_held)

    def _drawn(self, holders: Iterable[AnyCandidate], prompt: Prompt) -> list[AnyCandidate]:
        """Two at random of those that have to compute the least; none where that saves little."""
        left = {each: each.to_compute(prompt) for each in holders}
        least = min(left.values(), default=prompt.tokens)
        if prompt.tokens - least < WORTH * prompt.tokens:
            return []
        found = [each for each, tokens in left.items() if tokens == least]
        while len(found) > 2:
            del found[self._draw(len(found))]
        return found


def _held(worker: Candidate) -> tuple[int, str]:
    """Whom to take first of equals; no two are."""
    return worker.held, worker.key
