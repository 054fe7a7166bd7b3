"""The worker with the largest share of its slots free."""

from __future__ import annotations

from router.policies.base import AnyCandidate, Candidates


class LeastLoaded:
    """Open legs relative to capacity, so that workers of different size fill alike; the first key
    where two are equal.
    """

    def choose(self, candidates: Candidates[AnyCandidate]) -> AnyCandidate:
        return next(candidates.by_load())
