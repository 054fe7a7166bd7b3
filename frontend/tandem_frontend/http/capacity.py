"""How much a frontend takes on at once: requests from their head to the end of their answer, and
the bytes that are held for them.

A body costs memory while it is still being read, and time when it is tokenised, long before the
router hears of it: so a request counts from before its body is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tandem.byte_budget import Allotment, ByteBudget
from tandem.errors import QueueFullError


class Capacity:
    """The bounds of one process, and how much of each is taken now."""

    def __init__(self, *, max_requests: int, budget: ByteBudget) -> None:
        """`budget`: of all bytes that the process holds for its clients."""
        self._max_requests = max_requests
        self._budget = budget
        self.requests = 0

    @contextmanager
    def request(self) -> Iterator[Allotment]:
        """Room for a request, and its part of the budget. Raises QueueFullError."""
        if self.requests >= self._max_requests:
            raise QueueFullError("Too many open requests; try again later")
        self.requests += 1
        allotment = self._budget.allotment()
        try:
            yield allotment
        finally:
            self.requests -= 1
            allotment.close()
