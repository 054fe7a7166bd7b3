"""How far a worker is trusted: what was seen of it, and what it may be given for that.

              a stream opens                           a stream opens
              KV has yet to move                       KV has moved
                     │                                      │
                     ▼                 KV moves             ▼  a client's hand-over fails
                  PROVING ───────────────────────────────► WHOLE ────────────────────► SUSPECT
                  canaries alone                           any leg ◄────────────────── any leg,
                                                            │  ▲         KV moves      canaries
             it fails far more often than others of a group │  │                          │
                                                            ▼  │ no whole one is left     │
                                                          EJECTED ◄───────────────────────┘
                                                          no leg      it fails far more often
                                                            │  ▲
                                           its time is over │  │ a probe fails
                                                            ▼  │
                                                         PROBATION ──── probes end well, or no
                                                         a probe at     whole one is left ──► WHOLE
                                                         a time

EJECTED and PROBATION outlive the stream: a worker whose address stands so is proved first, and then
stands so again. `NEXT` is this drawing as data. From anywhere in the drawing a worker becomes
EJECTED whose output cannot be read, the last of its kind too: its stream is closed, and opened
again when its time is over, as the address stood before. Beside the drawing, a worker whose engine
makes no step gets nothing until it makes one. A Trust sees no other worker: outliers.py compares
them, and canaries.py tries them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tandem_router.core.values import Standing

SLOT_SECONDS = 30.0
"""What ended in this slot of time and in the one before it counts: 30 to 60 seconds."""
PROBES = 3
"""Legs that must end well, one after the other, before a worker is whole again."""
LONGEST_SECONDS = 600.0
"""An ejection lasts no longer, unless the setting for the first one says so."""
FORGET_SECONDS = 600.0
"""A worker that was whole for so long begins at the first ejection again; of an address that was
not connected for so long nothing is known.
"""
FIRST_PAUSE_SECONDS = 1.0
"""After a canary that failed, before the next of its workers; twice as long each further time. Up
to half of it is taken off at random: routers that have got in each other's way do not do so again.
"""
LONGEST_PAUSE_SECONDS = 60.0
FAULTS_SECONDS = 60.0
"""Output that could not be read counts for so long."""
LAST_RANK = 2
_UNPROVED = "it has not moved KV yet"
_MAX_REASON = 200


_PROVING, _WHOLE, _SUSPECT, _EJECTED, _PROBATION = Standing
NEXT: dict[Standing, set[Standing]] = {
    _PROVING: {_WHOLE, _EJECTED, _PROBATION},
    _WHOLE: {_PROVING, _SUSPECT, _EJECTED},
    _SUSPECT: {_WHOLE, _EJECTED},
    _EJECTED: {_PROVING, _PROBATION, _WHOLE, _EJECTED},
    _PROBATION: {_PROVING, _WHOLE, _EJECTED},
}
"""What may follow each standing, a new stream among it. A worker that is EJECTED for its output may
be EJECTED for its failures too.
"""


@dataclass(slots=True, eq=False)
class Trial:
    """What canaries have found of a worker that is PROVING or SUSPECT."""

    of: Standing
    reason: str = ""
    """Why the last canary failed, for people."""
    failures: int = 0
    """Canaries that failed, one after the other."""
    haste: float = 0.0
    """The share of the next pause that is taken off, from 0 to a half: random."""
    until: float = 0.0
    """When the worker may choose a partner again."""
    tried: set[str] = field(default_factory=set)
    """Addresses of partners that it failed with."""

    def failed(self, now: float, partner: str, reason: str) -> None:
        """A canary with that partner failed: the next pause is longer. No reason: the canary was
        not tried, as a worker was full or shut down.
        """
        pause = FIRST_PAUSE_SECONDS
        if reason:
            pause = min(pause * 2.0 ** min(self.failures, 32), LONGEST_PAUSE_SECONDS)
            self.failures += 1
            self.tried.add(partner)
            self.reason = reason
        self.until = now + pause * (1 - self.haste)


@dataclass(slots=True, eq=False)
class Trust:
    """How far the worker of an address is trusted, over all streams to that address. Counts are of
    legs, and times are of the core's clock, in seconds.
    """

    reputation: Standing = _WHOLE
    """WHOLE, EJECTED or PROBATION: how the address stands, or will once its worker is proved."""
    trial: Trial | None = None
    """None: the worker is neither PROVING nor SUSPECT."""
    stalled: bool = False
    """Whether the worker's engine has work and makes no step."""
    given_up: bool = False
    """The router is to close the stream, and the worker gets nothing more by it."""
    closed_until: float = 0.0
    """EJECTED, as its output could not be read: when its stream may be opened again."""
    closed_reason: str = ""
    """Why, for people."""
    since: float = 0.0
    """When it came to its reputation."""
    until: float = 0.0
    """EJECTED: when its time is over."""
    in_a_row: int = 0
    """Ejections since it was last whole for long."""
    ejections: int = 0
    failures: int = 0
    """Since the router's start, as `ejections` and `faults`."""
    faults: int = 0
    """Messages of the worker that this router could not read."""
    probe: int = 0
    """PROBATION: the leg that it has to prove itself with; 0: none runs."""
    passed: int = 0
    """Probes that ended well, one after the other."""
    absent: int = 0
    """Slots of time in which the worker was not connected."""
    _faults: deque[float] = field(default_factory=deque)
    """Times of the last faults that count for an ejection."""
    _ended: int = 0
    _failed: int = 0
    _ended_before: int = 0
    _failed_before: int = 0

    # --- what is asked of it ---------------------------------------------------------------------

    @property
    def standing(self) -> Standing:
        """The worker's place in the drawing at the head of this file."""
        if self.trial is not None:
            return self.trial.of
        return _EJECTED if self.closed_until else self.reputation

    @property
    def unproved(self) -> str:
        """Why a worker that is PROVING gets nothing of clients, for people; empty: it is proved."""
        if self.standing is not _PROVING or self.trial is None:
            return ""
        reason = self.trial.reason
        return f"{_UNPROVED}: {reason:.{_MAX_REASON}}" if reason else _UNPROVED

    def slots(self, free: int) -> int:
        """How many legs may be started on a worker that has so many slots free."""
        if self.reputation is not _WHOLE:
            free = min(free, 0 if self.probe else 1)
        return free if free > 0 else 0

    @property
    def retry_rank(self) -> int:
        """The lower, the rather a retry goes there. 0: legs have ended lately, and all well; 1:
        none has; 2: some failed, or the worker has yet to be whole.
        """
        if self.reputation is not _WHOLE or self.failed:
            return LAST_RANK
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

    # --- what it is told -------------------------------------------------------------------------

    def connected(self, *, proved: bool) -> None:
        """A stream has opened."""
        self.stalled = self.given_up = False
        self.closed_until = 0.0
        if not proved:
            self._become(_PROVING)

    def disconnected(self) -> Trust:
        """The stream has closed. Returns what the worker of that stream keeps, whatever becomes of
        the address: a worker that was not proved stays so for legs that were paired with its own.
        """
        left = Trust(trial=self.trial)
        if self.trial is not None:
            self._become(self.reputation)
        return left

    def moved_kv(self) -> bool:
        """KV has moved to or from the worker. Returns whether that was yet to be proved."""
        was = self.standing
        if self.trial is not None:
            self._become(self.reputation)
        return was is _PROVING

    def lost_kv(self, now: float, partner: str) -> Trial | None:
        """A client's hand-over with that partner failed. Returns the trial of a worker that is
        SUSPECT by that: for a while later, as what else fails meanwhile asks for no canary.
        """
        if self.standing is not _WHOLE:
            return None
        self._become(_SUSPECT)
        if self.trial is not None:
            self.trial.until = now + FIRST_PAUSE_SECONDS
            self.trial.tried.add(partner)
        return self.trial

    def leg_ended(self, now: float, leg: int, *, good: bool | None) -> Standing | None:
        """A leg ended: well, by a failure of the worker's own, or by what says nothing of it
        (None). Returns what a probe leads to: WHOLE, which the worker is now, or EJECTED, which it
        is to be; None: it was no probe, or leads to nothing yet.
        """
        is_probe = self.probe == leg
        if is_probe:
            self.probe = 0
        if good is None:
            return None
        if good:
            self._ended += 1
        else:
            self.count_failure()
        if not is_probe:
            return None
        if not good:
            return _EJECTED
        self.passed += 1
        if self.passed < PROBES:
            return None
        self.restore(now)
        return _WHOLE

    def count_failure(self) -> None:
        """A leg has ended by the worker's own doing, or output of the worker cannot be read."""
        self._ended += 1
        self._failed += 1
        self.failures += 1

    def unreadable(self, now: float, *, eject_after: int, seconds: float) -> bool:
        """Output of the worker could not be read; `count_failure` is told of that too. Returns
        whether the worker is EJECTED by that, for so many seconds. `eject_after`: faults within a
        minute; 0: no fault ejects a worker.
        """
        self.faults += 1
        if not eject_after or now < self.closed_until:
            return False
        self._faults.append(now)
        while now - self._faults[0] > FAULTS_SECONDS:
            self._faults.popleft()
        if len(self._faults) < eject_after:
            return False
        self._faults.clear()
        self.ejections += 1
        self.closed_until, self.given_up = now + seconds, True
        self.closed_reason = f"ejected for {seconds:g} s: its output could not be read"
        return True

    def silent(self, seconds: float | None, *, stalls_after: float) -> bool:
        """The engine has work and has made no step for so long; None: it does not say. Returns
        whether the worker gets nothing new by that, or something again.
        """
        was = self.stalled
        self.stalled = seconds is not None and seconds >= stalls_after
        return self.stalled is not was

    def gives_up(self, seconds: float, after: float) -> bool:
        """The engine has made no step for so long, while legs are open there. Returns whether its
        stream is to be closed by that, which is said once.
        """
        if self.given_up or seconds < after:
            return False
        self.given_up = True
        return True

    def eject(self, now: float, first_seconds: float) -> float:
        """Give the worker nothing new for a time, doubled each further time. Returns seconds."""
        if self.reputation is _WHOLE and now - self.since >= FORGET_SECONDS:
            self.in_a_row = 0
        longest = max(first_seconds, LONGEST_SECONDS)
        seconds = min(first_seconds * 2.0 ** min(self.in_a_row, 32), longest)
        self._become(_EJECTED)
        self.since, self.until = now, now + seconds
        self.in_a_row += 1
        self.ejections += 1
        self.probe = self.passed = 0
        return seconds

    def time_over(self, now: float) -> bool:
        """Whether an ejection is over by now: probation follows, at once or after the proof."""
        over = self.reputation is _EJECTED and self.until <= now
        if over:
            self.reputation, self.since = _PROBATION, now
        return over

    def restore(self, now: float) -> None:
        """The worker is whole again, and its record begins anew."""
        self._become(_WHOLE)
        self.since = now
        self.probe = self.passed = 0
        self._ended = self._failed = self._ended_before = self._failed_before = 0

    def next_slot(self, slots: int, *, connected: bool) -> None:
        """`slots` slots of time are over."""
        self.absent = 0 if connected else self.absent + slots
        self._ended_before = self._ended if slots == 1 else 0
        self._failed_before = self._failed if slots == 1 else 0
        self._ended = self._failed = 0

    def is_forgotten(self, now: float) -> bool:
        """The worker was away for so long that nothing of it is kept, and is not kept away."""
        return self.absent * SLOT_SECONDS > FORGET_SECONDS and self.closed_until <= now

    def _become(self, standing: Standing) -> None:
        assert standing in NEXT[self.standing], f"{self.standing} leads to no {standing}"
        self.trial = Trial(standing) if standing in (_PROVING, _SUSPECT) else None
        if self.trial is None:
            self.reputation = standing
