"""The bytes that a component holds for others: bodies, prompts, collected answers, backlogs.

All that one process holds comes out of one budget. What is new may take three quarters of it and is
refused beyond. The rest is left to the output of what runs, so that no answer ends because many
wait; where output does not fit either, whoever holds the most of it is ended.

A size is that of the content. What Python's objects take beside it, and what exists for a moment
while it is read or written, is left to the room between the budget and the process's memory limit.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import maxsize

from tandem.errors import QueueFullError

DEFAULT_BYTES = 256 * 1024 * 1024
"""An eighth of the chart's memory limits."""


class ByteBudget:
    """The bytes that one process may hold for its clients, and those that are held now."""

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self.limit = limit
        self.for_new = limit * 3 // 4
        """Bytes that new requests may take; the rest is for output of running ones."""
        self.held = 0
        self._endable: dict[Allotment, None] = {}

    def allotment(self, end: Callable[[], object] | None = None, most: int = maxsize) -> Allotment:
        """An empty one. `end` ends what it is for, which is how room is made for output; without it
        only `admit` may fill it. Output beyond `most` bytes ends it too.
        """
        allotment = Allotment(self, end, most)
        if end is not None:
            self._endable[allotment] = None
        return allotment

    def _make_room(self, asking: Allotment, size: int) -> None:
        """End those that hold the most, until `size` more bytes fit or `asking` is ended."""
        while self.held + size > self.limit and not asking.closed:
            most = max(self._endable, key=lambda each: each.size + (size if each is asking else 0))
            most.end()


class Allotment:
    """What one holder has of a budget. Closed it has nothing, and never will again."""

    __slots__ = ("_budget", "_end", "_most", "closed", "size")

    def __init__(self, budget: ByteBudget, end: Callable[[], object] | None, most: int) -> None:
        self._budget = budget
        self._end = end
        self._most = most
        self.closed = False
        self.size = 0

    def admit(self, size: int) -> None:
        """Take so much more, for something new. Raises QueueFullError, and takes nothing, where
        there is no room.
        """
        budget = self._budget
        if budget.held + size > budget.for_new:
            raise QueueFullError("Open requests take all memory there is; try again later")
        self._change(size)

    def grow(self, size: int) -> bool:
        """Take so much more, for output of what runs. False: it has been ended, as the one that
        holds the most where there was no room, or as more than its bound; or it was before.
        """
        budget = self._budget
        if budget.held + size > budget.limit:
            budget._make_room(self, size)
        self._change(size)
        if self.size > self._most:
            self.end()
        return not self.closed

    def hold(self, size: int) -> bool:
        """Have so many bytes, more or fewer than before, for output of what runs: as `grow`."""
        return self.grow(size - self.size)

    def give_back(self, size: int) -> None:
        """Take so much less. Raises ValueError where it has not that much."""
        if size > self.size and not self.closed:
            raise ValueError(f"{size} bytes are given back of {self.size}")
        self._change(-size)

    def close(self) -> None:
        """Give back all of it, for good. May be called again."""
        self._change(-self.size)
        self.closed = True
        self._end = None  # it refers back to this: else both wait for the garbage collector
        self._budget._endable.pop(self, None)

    def end(self) -> None:
        """End the request that holds the bytes, and give all of them back."""
        assert self._end is not None
        try:
            self._end()
        finally:
            self.close()

    def _change(self, size: int) -> None:
        if not self.closed:
            self.size += size
            self._budget.held += size
