"""Whether a worker's output can be read: its faults are counted and named, and one that goes on is
taken out for a time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from tandem.complaints import Complaints
from tandem.errors import WorkerError

log = logging.getLogger(__name__)

WITHIN_SECONDS = 60.0
"""Faults that lie further apart do not add up."""
EJECT_AFTER = 3
EJECT_SECONDS = 60.0


class Conduct:
    """One worker's, over all streams to its address."""

    def __init__(
        self,
        address: str = "",
        *,
        eject_after: int = EJECT_AFTER,
        eject_seconds: float = EJECT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`eject_after`: faults within a minute; 0: it is never taken out."""
        self.address = address
        self.eject_seconds = eject_seconds
        self.faults = 0
        """That this router has seen itself."""
        self.ejections = 0
        self._after = eject_after
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=eject_after or 1)
        self._complaints = Complaints(log)

    def blame(self, fault: str) -> None:
        """Count output of the worker that no worker can send."""
        self.faults += 1
        self._recent.append(self._clock())
        self._complain("a worker sends output that cannot be right", fault)

    def reported(self, fault: str) -> None:
        """A frontend reported unreadable output, which this router has not checked."""
        self._complain(
            "a frontend cannot read a worker's output: the router checks that output", fault
        )

    @property
    def condemned(self) -> bool:
        """The router is to eject the worker."""
        enough = self._after and len(self._recent) == self._after
        return bool(enough) and self._clock() - self._recent[0] <= WITHIN_SECONDS

    def eject(self) -> str:
        """It is taken out now, and may begin anew afterwards. Returns why, for people."""
        self.ejections += 1
        self._recent.clear()
        reason = f"ejected for {self.eject_seconds:g} s: its output could not be read"
        log.error("worker ejected", extra={"address": self.address, "reason": reason})
        return reason

    def close(self) -> None:
        """Nothing more is known of the worker: say what has not been said."""
        self._complaints.close()

    def _complain(self, message: str, fault: str) -> None:
        self._complaints.warn(message, WorkerError.code, address=self.address, reason=fault)
