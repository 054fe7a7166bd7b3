"""Many deadlines, most of which are cleared before they come."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from math import inf
from typing import Generic, TypeVar

Item = TypeVar("Item")

_SLOT_SECONDS = 0.1


class Timers(Generic[Item]):
    """Items with a time each. Set and clear cost the same however many there are, and a cleared
    item is not kept: a heap of cleared deadlines would hold every request until its deadline.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[Item, float]] = {}
        self._order: list[int] = []
        self.first = inf
        """No item's time comes before it."""

    def set(self, item: Item, at: float) -> None:
        if at < self.first:
            self.first = at
        number = int(at / _SLOT_SECONDS)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heapq.heappush(self._order, number)
        slot[item] = at

    def clear(self, item: Item, at: float) -> None:
        """Forget an item set for `at`; one that is not there is no error."""
        slot = self._slots.get(int(at / _SLOT_SECONDS))
        if slot is not None:
            slot.pop(item, None)

    def due(self, now: float) -> list[Item]:
        """Take out the items whose time has come, earliest slot first."""
        if now < self.first:
            return []
        current = int(now / _SLOT_SECONDS)
        items: list[Item] = []
        while self._order and self._order[0] < current:
            items.extend(self._slots.pop(heapq.heappop(self._order)))
        if slot := self._slots.get(current):
            now_due = [item for item, at in slot.items() if at <= now]
            for item in now_due:
                del slot[item]
            items.extend(now_due)
        self.first = self._earliest()
        return items

    def _earliest(self) -> float:
        """The first time of the first slot that still has items."""
        while self._order and not self._slots[self._order[0]]:
            del self._slots[heapq.heappop(self._order)]
        return min(self._slots[self._order[0]].values()) if self._order else inf

    def __iter__(self) -> Iterator[Item]:
        for slot in self._slots.values():
            yield from slot
