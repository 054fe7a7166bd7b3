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
from tandem_router.core.actions import GiveUpWorker, WorkerEjected, WorkerReturned
from tandem_router.core.events import LegClosed, WorkerDown
from tandem_router.core.sequences import Leg
from tandem_router.core.state import State
from tandem_router.core.timers import Timers
from tandem_router.core.trust import PROBES, SLOT_SECONDS
from tandem_router.core.values import Phase, Standing
from tandem_router.core.worker import Worker

News = list[WorkerEjected | WorkerReturned | GiveUpWorker]
"""Workers that are ejected, or whole again: the fleet is to be told of each that is connected."""
_GOOD = (Outcome.FINISHED, Outcome.TERMINATED, Outcome.REGENERATE)


class Outliers:
    """Compares what a State's workers have done."""

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
        """What is due by now. Returns the connected workers whose ejections are over."""
        if (slot := int(now // SLOT_SECONDS)) != self._slot:
            self._next_slot(slot - self._slot)
            self._slot = slot
        fleet, returning = self._state.fleet, []
        for key in self._ejected.due(now):
            trust = fleet.trusts.get(key)
            if trust is not None and trust.time_over(now) and key in fleet.workers:
                returning.append(fleet.workers[key])
        return returning

    def leg_ended(self, now: float, leg: Leg, closed: LegClosed) -> News:
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

    def unreadable(self, now: float, key: str) -> News:
        """Output of the worker at an address, connected or not, could not be read. Who goes on with
        that is ejected by itself: nobody is compared, and nobody's work is a reason to keep it.
        """
        bounds, fleet = self._state.bounds, self._state.fleet
        trust, worker = fleet.trust(key), fleet.workers.get(key)
        trust.count_failure()
        news = [] if worker is None else self.consider(now, worker)
        after, seconds = bounds.eject_after_faults, bounds.eject_seconds
        if trust.unreadable(now, eject_after=after, seconds=seconds):
            news.append(WorkerEjected(key, seconds, trust.closed_reason))
            if worker is not None:
                reason = "too much of its output could not be read"
                news.append(GiveUpWorker(key, reason, died=True))
        return news

    def consider(self, now: float, worker: Worker) -> News:
        """Eject the worker where it fails far more often than the sound workers of its group, and
        enough sound workers are left.
        """
        bounds, trust, fleet = self._state.bounds, worker.trust, self._state.fleet
        if fleet.workers.get(worker.key) is not worker:
            return []
        fails = bounds.eject_after_failures and trust.failed >= bounds.eject_after_failures
        if not (fails and trust.ratio >= bounds.eject_ratio and worker.used_as is Standing.WHOLE):
            return []
        side = fleet.side(worker)
        if side is None:
            return []
        whole = [each for each in side.standings[Standing.WHOLE].values() if each is not worker]
        out = 1 + len(side.standings[Standing.EJECTED]) + len(side.standings[Standing.PROBATION])
        if not whole or out > bounds.eject_most_share * (out + len(whole)):
            return []
        if trust.ratio - median(each.trust.ratio for each in whole) < bounds.eject_ratio:
            return []
        return [self._eject(now, worker)]

    def _count(self, now: float, leg: Leg, good: bool | None) -> News:
        worker = leg.worker
        follows = worker.trust.leg_ended(now, leg.number, good=good)
        if follows is Standing.WHOLE:
            return [WorkerReturned(worker.key, f"{PROBES} requests in a row have ended well")]
        if follows is Standing.EJECTED:
            return [self._eject(now, worker)]
        return self.consider(now, worker) if good is False else []

    def _count_partner(self, now: float, leg: Leg) -> News:
        """The worker at the other end of a hand-over that failed."""
        sequence = leg.sequence
        if sequence.pair is None:
            return []
        is_prefill = leg.phase is Phase.PREFILL
        other = sequence.decode if is_prefill else sequence.prefill
        if other is None:
            gone = sequence.pair.decode if is_prefill else sequence.pair.prefill
            if trust := self._state.fleet.trusts.get(gone.key):
                trust.count_failure()
            return self.consider(now, gone)
        return self._count(now, other, False)  # it is about to be cancelled, and then excused

    def _eject(self, now: float, worker: Worker) -> WorkerEjected:
        trust = worker.trust
        seconds = trust.eject(now, self._state.bounds.eject_first_seconds)
        self._ejected.set(worker.key, trust.until)
        reason = f"{trust.failed} of the last {trust.ended} legs failed there"
        return WorkerEjected(worker.key, seconds, reason)

    def _next_slot(self, slots: int) -> None:
        fleet = self._state.fleet
        for key, trust in list(fleet.trusts.items()):
            trust.next_slot(slots, connected=key in fleet.workers)
            if trust.is_forgotten(self._state.now):
                del fleet.trusts[key]


def _is_excused(leg: Leg) -> bool:
    """However it ends: it was cancelled, its worker shuts down, or one of its pair is yet to be
    proved.
    """
    worker, sequence = leg.worker, leg.sequence
    if leg.settle_by is not None or (worker.draining and not worker.died):
        return True
    if not sequence.request.canary or sequence.pair is None:
        return False  # no client's leg runs on a worker that is yet to be proved
    return any(each.trust.standing is Standing.PROVING for each in sequence.pair)


def _is_good(closed: LegClosed) -> bool | None:
    """Whether it ended well; False: by a failure of its worker's; None: neither."""
    if closed.outcome in _GOOD:
        return True
    if closed.outcome is Outcome.CANCELLED or closed.error is None:  # nobody had asked for it
        return False
    return False if isinstance(closed.error, WorkerError) else None
