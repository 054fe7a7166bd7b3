"""How much a frontend takes on at once: requests from their head to the end of their answer, and
the bytes of their bodies.

A body costs memory while it is still being read, and time when it is tokenised, long before the
router hears of it: so a request counts from before its body is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tandem.errors import QueueFullError


class Capacity:
    """The bounds of one process, and what is taken of them now."""

    def __init__(self, *, max_requests: int, max_body_bytes: int) -> None:
        """`max_body_bytes`: of all bodies together."""
        self._max_requests = max_requests
        self._max_body_bytes = max_body_bytes
        self.requests = 0
        self.body_bytes = 0

    @contextmanager
    def request(self) -> Iterator[Share]:
        """Room for one more request, for as long as it is served.

        Raises QueueFullError where there is none.
        """
        if self.requests >= self._max_requests:
            raise QueueFullError("Too many open requests; try again later")
        self.requests += 1
        share = Share(self)
        try:
            yield share
        finally:
            self.requests -= 1
            self.body_bytes -= share.body_bytes

    def take(self, size: int) -> None:
        """Room for that many more bytes of a body. Raises QueueFullError where there is none."""
        if self.body_bytes + size > self._max_body_bytes:
            raise QueueFullError("The bodies of open requests take too much; try again later")
        self.body_bytes += size


class Share:
    """What one request holds of it."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self.body_bytes = 0

    def take(self, size: int) -> None:
        """Room for more of its body. Raises QueueFullError where there is none."""
        self._capacity.take(size)
        self.body_bytes += size
