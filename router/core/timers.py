"""Many deadlines, most of which are cleared before they come."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
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

    def set(self, item: Item, at: float) -> None:
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
        current = int(now / _SLOT_SECONDS)
        if not self._order or self._order[0] > current:
            return []
        items: list[Item] = []
        while self._order and self._order[0] < current:
            items.extend(self._slots.pop(heapq.heappop(self._order)))
        if slot := self._slots.get(current):
            now_due = [item for item, at in slot.items() if at <= now]
            for item in now_due:
                del slot[item]
            items.extend(now_due)
        return items

    def __iter__(self) -> Iterator[Item]:
        for slot in self._slots.values():
            yield from slot
