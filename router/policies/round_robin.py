"""The round_robin policy: the workers in turn, by address."""

from __future__ import annotations

from collections.abc import Sequence

from router.policies.base import AnyCandidate


class RoundRobin:
    """The next key after the last one chosen; workers may come and go in between."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[AnyCandidate]) -> AnyCandidate:
        chosen = next((each for each in candidates if each.key > self._last), candidates[0])
        self._last = chosen.key
        return chosen
