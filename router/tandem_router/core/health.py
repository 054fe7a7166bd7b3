"""Which workers fail far more often than others of their group: they are ejected for a time, and
have to prove themselves afterwards.

What counts is how legs end on a worker: well, by a failure of its own, or by what is nobody's fault
there, such as a cancel, a deadline, a verdict or a request that cannot be. A hand-over that failed
counts for both of its workers: which of them fails with everybody shows in the comparison.
"""

from __future__ import annotations

from statistics import median

from tandem.endings import Outcome
from tandem.errors import KvTransferError, WorkerError
from tandem_router.core.actions import WorkerEjected, WorkerReturned
from tandem_router.core.events import LegClosed, WorkerDown
from tandem_router.core.record import SLOT_SECONDS
from tandem_router.core.sequences import Leg
from tandem_router.core.state import State
from tandem_router.core.timers import Timers
from tandem_router.core.values import Phase, Standing
from tandem_router.core.worker import Worker

PROBES = 3
"""Legs that must end well, one after the other, before a worker is whole again."""
LONGEST_SECONDS = 600.0
"""An ejection lasts no longer, unless the setting for the first one says so."""
FORGET_SECONDS = 600.0
"""A worker that was whole for so long begins at the first ejection again; of an address that was
not connected for so long nothing is known.
"""
News = list[WorkerEjected | WorkerReturned]
"""Workers whose standing has changed: the fleet is to be told of each."""
_GOOD = (Outcome.FINISHED, Outcome.TERMINATED, Outcome.REGENERATE)


class Health:
    """Judges the records of a State's workers."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._slot = 0
        self._ejected: Timers[str] = Timers()
        """Addresses."""

    @property
    def wakes_at(self) -> float:
        """When the next ejection is over."""
        return self._ejected.first

    def expire(self, now: float) -> list[Worker]:
        """What is due by now. Returns the connected workers whose standing has changed by that."""
        if (slot := int(now // SLOT_SECONDS)) != self._slot:
            self._next_slot(slot - self._slot)
            self._slot = slot
        fleet, returning = self._state.fleet, []
        for key in self._ejected.due(now):
            record = fleet.records.get(key)
            if record and record.standing is Standing.EJECTED and record.until <= now:
                record.try_again(now)
                if key in fleet.workers:
                    returning.append(fleet.workers[key])
        return returning

    def ended(self, now: float, leg: Leg, closed: LegClosed) -> News:
        """A leg is about to be closed, by its worker."""
        good = None if _is_excused(leg) else _is_good(closed)
        news = self._count(now, leg, good)
        if good is False and isinstance(closed.error, KvTransferError):
            news += self._count_partner(now, leg)
        return news

    def lost(self, now: float, worker: Worker, down: WorkerDown) -> News:
        """A worker is no longer connected. If it may have died, what had begun there failed."""
        news: News = []
        for number in sorted(worker.legs):
            leg = self._state.legs[number]
            failed = down.died and number not in down.unsent and not _is_excused(leg)
            news += self._count(now, leg, False if failed else None)
        return news

    def fault(self, now: float, worker: Worker) -> News:
        """Count output of the worker that a frontend or this router could not read."""
        return self._failed(now, worker)

    def consider(self, now: float, worker: Worker) -> News:
        """Eject the worker where it fails far more often than the sound workers of its group, and
        enough sound workers are left.
        """
        bounds, record, fleet = self._state.bounds, worker.record, self._state.fleet
        if fleet.workers.get(worker.key) is not worker:
            return []
        fails = bounds.eject_after_failures and record.failed >= bounds.eject_after_failures
        if not (fails and record.whole and record.ratio >= bounds.eject_ratio and worker.usable):
            return []
        side = fleet.side(worker)
        if side is None:
            return []
        whole = [each for each in side.standings[Standing.WHOLE].values() if each is not worker]
        out = 1 + len(side.standings[Standing.EJECTED]) + len(side.standings[Standing.PROBATION])
        if not whole or out > bounds.eject_most_share * (out + len(whole)):
            return []
        if record.ratio - median(each.record.ratio for each in whole) < bounds.eject_ratio:
            return []
        return [self._eject(now, worker)]

    def _count(self, now: float, leg: Leg, good: bool | None) -> News:
        """`good`: None counts as nothing."""
        worker, record = leg.worker, leg.worker.record
        is_probe = record.probe == leg.number
        if is_probe:
            record.probe = 0
        if good is None:
            return []
        if not good:
            return self._failed(now, worker, again=is_probe)
        record.count(good=True)
        if is_probe:
            record.passed += 1
            if record.passed >= PROBES:
                record.restore(now)
                return [WorkerReturned(worker.key, f"{PROBES} requests in a row have ended well")]
        return []

    def _count_partner(self, now: float, leg: Leg) -> News:
        """The worker at the other end of a hand-over that failed."""
        sequence = leg.sequence
        if sequence.pair is None:
            return []
        is_prefill = leg.phase is Phase.PREFILL
        other = sequence.decode if is_prefill else sequence.prefill
        if other is None:
            return self._failed(now, sequence.pair.decode if is_prefill else sequence.pair.prefill)
        return self._count(now, other, False)  # it is about to be cancelled, and then excused

    def _failed(self, now: float, worker: Worker, *, again: bool = False) -> News:
        worker.record.count(good=False)
        return [self._eject(now, worker)] if again else self.consider(now, worker)

    def _eject(self, now: float, worker: Worker) -> WorkerEjected:
        record, first = worker.record, self._state.bounds.eject_first_seconds
        if record.whole and now - record.since >= FORGET_SECONDS:
            record.in_a_row = 0
        seconds = min(first * 2.0 ** min(record.in_a_row, 32), max(first, LONGEST_SECONDS))
        record.eject(now, now + seconds)
        self._ejected.set(worker.key, record.until)
        return WorkerEjected(worker.key, seconds, record.failed, record.ended)

    def _next_slot(self, slots: int) -> None:
        fleet = self._state.fleet
        for key, record in list(fleet.records.items()):
            record.next_slot(slots)
            record.absent = 0 if key in fleet.workers else record.absent + slots
            if record.absent * SLOT_SECONDS > FORGET_SECONDS:
                del fleet.records[key]


def _is_excused(leg: Leg) -> bool:
    """However it ends: it was cancelled, its worker shuts down, or one of its pair is yet to be
    proved.
    """
    pair = leg.sequence.pair
    unproved = pair is not None and bool(pair.prefill.unproved or pair.decode.unproved)
    cancelled = leg.settle_by is not None
    return cancelled or unproved or (leg.worker.draining and not leg.worker.died)


def _is_good(closed: LegClosed) -> bool | None:
    """Whether it ended well; False: by a failure of its worker's; None: neither."""
    if closed.outcome in _GOOD:
        return True
    if closed.outcome is Outcome.CANCELLED or closed.error is None:  # nobody had asked for it
        return False
    return False if isinstance(closed.error, WorkerError) else None
