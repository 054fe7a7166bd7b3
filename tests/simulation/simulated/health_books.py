"""How workers do, as an outsider reckons it from the ends of their legs: who is to be ejected, who
has to prove itself, and who is whole again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Literal

import tandem_router.core.trust
from tandem.endings import Outcome
from tandem.errors import WorkerError
from tandem_router.core.events import LegClosed
from tandem_router.core.trust import FORGET_SECONDS, LONGEST_SECONDS, PROBES, SLOT_SECONDS
from tandem_router.core.values import Bounds

if TYPE_CHECKING:
    from simulated.router_books import LegBook, WorkerBook


@dataclass(slots=True, eq=False)
class Past:
    """What is known of an address."""

    ends: list[tuple[int, bool]] = field(default_factory=list)
    """Of legs: in which slot of time, and whether well."""
    out: Literal["", "ejected", "probation"] = ""
    until: float = 0.0
    whole_since: float = 0.0
    ejections: int = 0
    """One after the other."""
    probe: int = 0
    passed: int = 0
    last_slot: int = 0
    """In which it was connected."""
    faults: list[float] = field(default_factory=list)
    """When its output could not be read."""
    closed_until: float = 0.0
    """No stream to it is to be opened."""

    def ratio(self) -> float:
        return self.failed() / len(self.ends) if self.ends else 0.0

    def failed(self) -> int:
        return sum(not good for _, good in self.ends)


class HealthBooks:
    """One router's."""

    def __init__(self, bounds: Bounds, workers: dict[str, WorkerBook]) -> None:
        self._bounds, self._workers = bounds, workers
        self._pasts: dict[str, Past] = {}
        self._now = 0.0
        self.news: list[tuple[str, str]] = []
        """Workers that were just "ejected" or "returned", or "given up": to be said."""

    @property
    def _slot(self) -> int:
        return int(self._now // SLOT_SECONDS)

    def at(self, now: float) -> None:
        """Time has come to `now`."""
        before, self._now = self._slot, now
        for key, past in self._pasts.items():
            if self._slot != before:
                past.ends = [each for each in past.ends if each[0] >= self._slot - 1]
            if past.out == "ejected" and past.until <= now:
                past.out = "probation"
            if key in self._workers:
                past.last_slot = self._slot

    def past(self, key: str) -> Past:
        """Of a worker that comes up, or whose first words cannot be read."""
        past = self._pasts.get(key)
        if past is None or (self._slot - past.last_slot) * SLOT_SECONDS > FORGET_SECONDS:
            past = self._pasts[key] = Past()
        past.last_slot = self._slot
        return past

    def closed(self, leg: LegBook, closed: LegClosed) -> None:
        excused = _is_excused(leg)
        good = None if excused else _is_good(closed)
        self._end(leg, good)
        error = closed.error
        if good is False and error is not None and error.code.startswith("kv_"):
            pair, sequence = leg.sequence.pair, leg.sequence
            if pair is not None:
                is_prefill = leg is sequence.prefill
                other = sequence.decode if is_prefill else sequence.prefill
                if other is None:
                    self._failed(pair[is_prefill], probe=False)
                else:
                    self._end(other, False)

    def lost(self, worker: WorkerBook, *, died: bool, unsent: frozenset[int]) -> None:
        for leg in worker.legs.values():
            failed = died and leg.number not in unsent and not _is_excused(leg)
            self._end(leg, False if failed else None)

    def fault(self, key: str) -> None:
        """Output of an address cannot be read: so many faults within a time take its worker out,
        the last one of its kind too.
        """
        past, worker = self.past(key), self._workers.get(key)
        past.ends.append((self._slot, False))
        if worker is not None:
            self.consider(worker)
        if self._now < past.closed_until:
            return
        within = tandem_router.core.trust.FAULTS_SECONDS
        past.faults = [each for each in past.faults if self._now - each <= within] + [self._now]
        if 0 < self._bounds.eject_after_faults <= len(past.faults):
            past.faults.clear()
            past.closed_until = self._now + self._bounds.eject_seconds
            self.news.append((key, "ejected"))
            if worker is not None:
                worker.given_up = True
                self.news.append((key, "given up for its output"))

    def started(self, leg: LegBook) -> None:
        if leg.worker.past.out == "probation":
            leg.worker.past.probe = leg.number

    def forgive(self) -> None:
        """Where none of a kind is whole, all are."""
        for each in self._workers.values():
            if each.past.out and each.usable:
                like = self._like(each)
                if all(other.past.out for other in like):
                    for other in like:
                        self._restore(other)

    def consider(self, worker: WorkerBook) -> None:
        """It may have failed too often."""
        bounds, past = self._bounds, worker.past
        here = self._workers.get(worker.key) is worker and worker.usable and not past.out
        if not here or not 0 < bounds.eject_after_failures <= past.failed():
            return
        like = self._like(worker)
        others = [each.past.ratio() for each in like if each is not worker and not each.past.out]
        out = len(like) - len(others)
        enough = others and out <= bounds.eject_most_share * len(like)
        if enough and past.ratio() - median(others) >= bounds.eject_ratio <= past.ratio():
            self._eject(worker)

    def _like(self, worker: WorkerBook) -> list[WorkerBook]:
        mine = worker.profile
        return [
            each
            for each in self._workers.values()
            if each.usable
            and each.profile.phase is mine.phase
            and each.profile.fingerprint == mine.fingerprint
        ]

    def _end(self, leg: LegBook, good: bool | None) -> None:
        past = leg.worker.past
        probe = past.probe == leg.number
        if probe:
            past.probe = 0
        if good is False:
            self._failed(leg.worker, probe=probe)
        elif good:
            past.ends.append((self._slot, True))
            past.passed += probe
            if past.passed == PROBES:
                self._restore(leg.worker)

    def _failed(self, worker: WorkerBook, *, probe: bool) -> None:
        worker.past.ends.append((self._slot, False))
        if probe:
            self._eject(worker)
        else:
            self.consider(worker)

    def _eject(self, worker: WorkerBook) -> None:
        past, first = worker.past, self._bounds.eject_first_seconds
        if not past.out and self._now - past.whole_since >= FORGET_SECONDS:
            past.ejections = 0
        seconds = first
        for _ in range(past.ejections):
            seconds = min(2 * seconds, max(first, LONGEST_SECONDS))
        past.ejections += 1
        past.out, past.until = "ejected", self._now + seconds
        past.probe = past.passed = 0
        self.news.append((worker.key, "ejected"))

    def _restore(self, worker: WorkerBook) -> None:
        past = worker.past
        past.out, past.whole_since = "", self._now
        past.probe = past.passed = 0
        past.ends.clear()
        self.news.append((worker.key, "returned"))


def usual(workers: Iterable[WorkerBook]) -> list[WorkerBook]:
    """Those where something ended well lately, and nothing failed; where there is none, those that
    have not failed lately; or else all.
    """
    workers = list(workers)
    sound = [each for each in workers if not each.past.out and not each.past.failed()]
    return [each for each in sound if each.past.ends] or sound or workers


def _is_excused(leg: LegBook) -> bool:
    if leg.cancelled_at is not None or (leg.worker.draining and not leg.worker.died):
        return True
    sequence = leg.sequence
    over = sequence.request.canary and sequence.stage == "ended"
    return over or (sequence.pair is not None and not all(each.proved for each in sequence.pair))


def _is_good(closed: LegClosed) -> bool | None:
    """None: it says nothing of its worker."""
    match closed.outcome:
        case Outcome.FINISHED | Outcome.TERMINATED | Outcome.REGENERATE:
            return True
        case Outcome.CANCELLED:
            return False
    own = closed.error is None or isinstance(closed.error, WorkerError)
    return False if own else None
