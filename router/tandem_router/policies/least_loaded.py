"""The least_loaded policy: the worker with the least to do for its size."""

from __future__ import annotations

from tandem_router.policies.base import AnyCandidate, Candidates, Draw, Prompt, at_random


class LeastLoaded:
    """The smallest cost (see Candidate), which is relative to a worker's slots, so that workers of
    different size fill alike; the first key where two are equal.

    Where other routers use the workers too, the better of two at random. What is known of those
    routers' legs is up to a second old, and all that took the least loaded worker would run to the
    same one meanwhile; two draws spread them, and leave the load almost as even (Mitzenmacher, The
    Power of Two Choices in Randomized Load Balancing, 2001).
    """

    def __init__(self, draw: Draw = at_random) -> None:
        self._draw = draw

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        if not candidates.shared:
            return next(candidates.by_load())
        one, other = candidates.two_at_random(self._draw)
        return one if (one.cost, one.key) < (other.cost, other.key) else other
