"""The round_robin policy: the workers in turn, by address."""

from __future__ import annotations

from tandem_router.policies.base import AnyCandidate, Candidates, Prompt


class RoundRobin:
    """The next key after the last one chosen; workers may come and go in between."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        chosen = next(candidates.by_address(after=self._last))
        self._last = chosen.key
        return chosen
