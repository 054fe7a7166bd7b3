"""Ids in the order of their ranks, most of which are taken out before they come first."""

from __future__ import annotations

import heapq

_SPARE = 64
"""Removed ids that the heap may keep beyond the number of live ids."""


class Ranking:
    """The id with the lowest rank is first; of equal ranks, the lowest id."""

    def __init__(self) -> None:
        self.ranks: dict[int, float] = {}
        """The ids that are there, and their ranks."""
        self._heap: list[tuple[float, int]] = []

    def add(self, id: int, rank: float) -> None:
        """Add an id that the ranking does not have."""
        self.ranks[id] = rank
        heapq.heappush(self._heap, (rank, id))

    def discard(self, id: int) -> None:
        """Take an id out; one that is not there is no error."""
        self.ranks.pop(id, None)
        if len(self._heap) > 2 * len(self.ranks) + _SPARE:
            self._heap = [(rank, id) for id, rank in self.ranks.items()]
            heapq.heapify(self._heap)

    def first(self) -> tuple[int, float] | None:
        """The first id and its rank."""
        while self._heap and self._heap[0][1] not in self.ranks:
            heapq.heappop(self._heap)
        if not self._heap:
            return None
        rank, id = self._heap[0]
        return id, rank

    def clear(self) -> None:
        """Remove every id."""
        self.ranks.clear()
        self._heap.clear()
