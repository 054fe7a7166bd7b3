"""Who waits for responses: of one request, or of any."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class Waiter:
    """Somebody who is woken once, and then looks whether there is something to read."""

    __slots__ = ("request_id", "wake")

    def __init__(self, request_id: int | None, wake: Callable[[], object]) -> None:
        """`request_id`: whose responses it waits for; None: any."""
        self.request_id = request_id
        self.wake = wake


class Waiters:
    """All who wait for one request are woken together; of those who wait for any, one at a time."""

    def __init__(self) -> None:
        self._any: OrderedDict[Waiter, None] = OrderedDict()
        """In the order in which they came; thousands may come and go."""
        self._of: dict[int, list[Waiter]] = {}

    def add(self, waiter: Waiter) -> None:
        """Add a waiter that has found no response and wants to be woken."""
        if waiter.request_id is None:
            self._any[waiter] = None
        else:
            self._of.setdefault(waiter.request_id, []).append(waiter)

    def take(self, came: Sequence[int], *, first: bool) -> list[Waiter]:
        """Who is to be woken, now that there is something to read of these requests. `first`:
        nothing was to be read of any, so that nobody who waits for any is awake.
        """
        found: list[Waiter] = []
        if self._of:
            found = [waiter for request_id in came for waiter in self._of.pop(request_id, ())]
        if first and self._any:
            found.append(self._any.popitem(last=False)[0])
        return found

    def forget(self, waiter: Waiter, *, unread: bool) -> None:
        """The waiter waits no longer. `unread`: something is left for whoever waits for any."""
        if waiter.request_id is not None:
            waiting = self._of.get(waiter.request_id, [])
            if waiter in waiting:
                waiting.remove(waiter)
                if not waiting:
                    del self._of[waiter.request_id]
        elif waiter in self._any:
            del self._any[waiter]
        elif unread and self._any:
            self._wake_one()

    def wake_all(self) -> None:
        """Nothing will come any longer."""
        waiting = [*self._any, *(each for found in self._of.values() for each in found)]
        self._any.clear()
        self._of.clear()
        for waiter in waiting:
            waiter.wake()

    def _wake_one(self) -> None:
        waiter, _ = self._any.popitem(last=False)
        waiter.wake()
