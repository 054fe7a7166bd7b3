"""The worker with the largest share of its slots free."""

from __future__ import annotations

from collections.abc import Sequence

from router.policies.base import AnyCandidate


class LeastLoaded:
    """Open legs relative to capacity, so that workers of different size fill alike; the first key
    where two are equal.
    """

    def choose(self, candidates: Sequence[AnyCandidate]) -> AnyCandidate:
        return min(candidates, key=lambda each: (each.open_legs / each.capacity, each.key))
