"""How much happened within the last minute, to the second."""

from __future__ import annotations

from collections import deque

SECONDS = 60


class Minute:
    """Counts of sixty seconds that slide. `now` is of a clock that never goes back, in seconds."""

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts: deque[list[int]] = deque()
        """A second and what it brought; the oldest first."""
        self._total = 0

    def add(self, now: float, amount: int) -> None:
        second = int(now)
        if self._counts and self._counts[-1][0] == second:
            self._counts[-1][1] += amount
        else:
            self._counts.append([second, amount])
        self._total += amount

    def total(self, now: float) -> int:
        """What the last sixty seconds brought, and what is left of the second before."""
        oldest = int(now) - SECONDS
        while self._counts and self._counts[0][0] < oldest:
            self._total -= self._counts.popleft()[1]
        return self._total

    def seconds_until_below(self, limit: int, now: float) -> float:
        """Seconds until less than `limit`, at least 1, is counted; 0: it is so now."""
        left, until = self.total(now), now
        for second, amount in self._counts:
            if left < limit:
                break
            left -= amount
            until = second + SECONDS + 1
        return until - now
