"""How a worker's address has done lately, over all streams to it: how many legs ended there, how
many of them by a failure of the worker's own, and whether it is ejected for that. health.py judges.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem_router.core.values import Standing

SLOT_SECONDS = 30.0
"""What happened in this slot of time and in the one before it counts: 30 to 60 seconds."""

MOST_DOUBT = 2


@dataclass(slots=True, eq=False)
class Record:
    """What is known of one address: numbers of legs, and times in seconds of the core's clock."""

    standing: Standing = Standing.WHOLE
    since: float = 0.0
    """When it came to this standing."""
    until: float = 0.0
    """EJECTED: when its time is over."""
    in_a_row: int = 0
    """Ejections since it was last whole for long."""
    ejections: int = 0
    failures: int = 0
    """Since the router's start, as `ejections`."""
    probe: int = 0
    """PROBATION: the leg that it has to prove itself with; 0: none runs."""
    passed: int = 0
    """Probes that ended well, one after the other."""
    absent: int = 0
    """Slots of time in which the worker was not connected."""
    _ended: int = 0
    _failed: int = 0
    _ended_before: int = 0
    _failed_before: int = 0

    @property
    def whole(self) -> bool:
        return self.standing is Standing.WHOLE

    @property
    def doubt(self) -> int:
        """How little a retry should go there. 0: legs have ended lately, and all well; 1: none has;
        2: some failed, or it has yet to prove itself.
        """
        if not self.whole or self.failed:
            return MOST_DOUBT
        return 0 if self.ended else 1

    @property
    def ended(self) -> int:
        """Legs that ended lately, well or by a failure of the worker's."""
        return self._ended + self._ended_before

    @property
    def failed(self) -> int:
        """Ended legs that failed."""
        return self._failed + self._failed_before

    @property
    def ratio(self) -> float:
        """The share that failed; 0 where nothing ended."""
        return self.failed / self.ended if self.ended else 0.0

    def count(self, *, good: bool) -> None:
        """A leg has ended well, or by a failure of the worker's."""
        self._ended += 1
        if not good:
            self._failed += 1
            self.failures += 1

    def next_slot(self, slots: int) -> None:
        """So many slots of time are over."""
        self._ended_before = self._ended if slots == 1 else 0
        self._failed_before = self._failed if slots == 1 else 0
        self._ended = self._failed = 0

    def eject(self, now: float, until: float) -> None:
        self.standing, self.since, self.until = Standing.EJECTED, now, until
        self.in_a_row += 1
        self.ejections += 1
        self.probe = self.passed = 0

    def try_again(self, now: float) -> None:
        """Put an ejected worker on probation."""
        self.standing, self.since = Standing.PROBATION, now

    def restore(self, now: float) -> None:
        """It is whole again, and what was before is not held against it."""
        self.standing, self.since = Standing.WHOLE, now
        self.probe = self.passed = 0
        self.next_slot(2)
