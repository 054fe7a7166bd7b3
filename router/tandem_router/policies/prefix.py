"""The prefix policy: the worker that would have computed all it has, and the prompt, soonest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import inf

from tandem.prefix_blocks import BLOCK_TOKENS
from tandem_router.policies.base import AnyCandidate, Candidate, Candidates, Draw, Prompt, at_random

MOST_HOLDERS = 8
"""Looked at of those that hold a beginning of the prompt; more would cost each request."""
LEAST_LOADED = 2
"""Looked at of the others."""
WORTH = 1 / 4
"""The share of the prompt that holders must have to be looked at where routers share workers."""
OVERLAP_WEIGHT = 4
"""What a cached token counts for, in tokens of backlog. To compute it anew delays those behind it,
too, and takes another prompt's place in the cache; measured (docs/replay.md).
"""
HINT_TOKENS = BLOCK_TOKENS
"""How much further behind than others a session's last worker may be: it may hold the rest of a
block, which nobody tells of, or what it has not told yet.
"""


class Prefix:
    """The smallest backlog once the prompt is there: tokens still to compute, and four times those
    of the prompt that its cache does not hold, for each of its slots. So a worker with the prompt's
    beginning is taken as long as it is not further behind the others than four times that.

    Looked at are those that hold the longest beginnings, the session's last, the two least loaded
    and two at random. Of equals the one that computes the least of it, then the one that holds the
    least: so caches fill alike. Where other routers use the workers too, the least loaded are left
    out, and of those with the longest beginning two are drawn, if it is long: see LeastLoaded. All
    prompts may begin alike, so that every worker holds a little of each.

    The sequences of one request find each other by that: the worker of the last one is looked at,
    and holds what that one brings.
    """

    def __init__(self, draw: Draw = at_random) -> None:
        self._draw = draw

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        if len(candidates) == 1:
            return next(candidates.by_load())
        offered = dict.fromkeys(self._looked_at(candidates, prompt), 0)
        if prompt.session and (last := candidates.last_of(prompt.session)) is not None:
            offered[last] = HINT_TOKENS
        sibling = candidates.last_sibling(prompt.request) if prompt.request else None
        if sibling is not None and sibling.to_compute(prompt) < prompt.tokens:
            offered.setdefault(sibling, 0)
        rest = prompt.tokens - len(prompt.blocks) * BLOCK_TOKENS
        least: tuple[float, int] = inf, 0
        equals: list[AnyCandidate] = []
        for each, hint in offered.items():
            cost, slots = each.cost, each.capacity
            if cost + (OVERLAP_WEIGHT * rest - hint) / slots > least[0]:
                continue  # even if it held all blocks
            tokens = OVERLAP_WEIGHT * each.to_compute(prompt) - hint
            rank = cost + tokens / slots, tokens
            if rank < least:
                least, equals = rank, [each]
            elif rank == least:
                equals.append(each)
        return equals[0] if len(equals) == 1 else min(equals, key=_held)

    def _looked_at(
        self, candidates: Candidates[AnyCandidate], prompt: Prompt
    ) -> Sequence[AnyCandidate]:
        """Candidates to compare, without those of the prompt's session and request. Candidates that
        may save most come first: after them few others need a comparison.
        """
        drawn = candidates.two_at_random(self._draw)
        if candidates.shared:
            return *self._drawn(candidates, prompt), *drawn
        holders = candidates.holding(prompt, MOST_HOLDERS)
        return *holders, *islice(candidates.by_load(), LEAST_LOADED), *drawn

    def _drawn(
        self, candidates: Candidates[AnyCandidate], prompt: Prompt
    ) -> Sequence[AnyCandidate]:
        """Two at random of those with the longest beginning; none where that saves little."""
        found = [*candidates.holding_most(prompt, MOST_HOLDERS)]
        if not found or prompt.tokens - found[0].to_compute(prompt) < WORTH * prompt.tokens:
            return ()
        while len(found) > 2:
            del found[self._draw(len(found))]
        return found


def _held(worker: Candidate) -> tuple[int, str]:
    """Whom to take first of equals; no two are."""
    return worker.held, worker.key
