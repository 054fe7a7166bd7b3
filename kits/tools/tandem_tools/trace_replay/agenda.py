"""Virtual time: what is to happen when, one thing after the other."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Agenda:
    """Calls in the order of their times; of equal times in the order in which they were noted."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the replay began."""
        self._calls: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._order = itertools.count()

    def at(self, moment: float, call: Callable[..., object], *arguments: object) -> None:
        """Note a call for a moment that is not over."""
        heapq.heappush(self._calls, (moment, next(self._order), call, arguments))

    def after(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Note a call that is due in so many seconds."""
        self.at(self.now + seconds, call, *arguments)

    def run(self, unfinished: Callable[[], object]) -> None:
        """Until that is no longer true, or nothing is left to do."""
        calls = self._calls
        while calls and unfinished():
            self.now, _, call, arguments = heapq.heappop(calls)
            call(*arguments)
