"""What must be true of a router's canaries: who is tried with whom and when, how each ends, and
whom it proves. No worker gets a client's request before it is proved, and none that could be tried
at once is left waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulated import submits
from simulated.router_books import Books, LegBook, RequestBook, SequenceBook, WorkerBook, make_of
from tandem.endings import Outcome
from tandem.errors import DrainingError, QueueFullError
from tandem_router.core import actions, events
from tandem_router.core.canaries import HANGS_SECONDS, MOST_OPEN
from tandem_router.core.trust import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS
from tandem_router.core.values import Bounds, Phase

if TYPE_CHECKING:
    from simulated.router_books import PairBook


@dataclass(slots=True, eq=False)
class Trial:
    """What is known of a worker that is to be tried."""

    after: float
    """When it may be tried next at the earliest, unless another chooses it."""
    by: float
    """When it must be, if it can be."""
    failures: int = 0
    paused: bool = False
    """What ends a pause is a tick."""


class CanaryRules:
    """One router's."""

    def __init__(self, books: Books, bounds: Bounds, fault: Callable[[str], None]) -> None:
        self._books, self._bounds, self._fault = books, bounds, fault
        self._open: dict[int, SequenceBook] = {}
        self._trials: dict[WorkerBook, Trial] = {}
        self._failed: list[tuple[str, str]] = []
        """Pairs whose failure is to be said."""
        self._numbers: set[int] = set()
        self.now = 0.0
        self.proved: list[WorkerBook] = []
        """Since they were last taken in."""

    # --- what happened ---

    def worker_up(self, worker: WorkerBook) -> None:
        worker.proved = worker.profile.moved_kv or not self._bounds.canary_seconds
        if not worker.proved:
            self._trials[worker] = Trial(self.now, self.now)

    def worker_gone(self, worker: WorkerBook) -> None:
        self._trials.pop(worker, None)

    def drained(self, worker: WorkerBook) -> None:
        """It takes nothing new, and what is tried there ends."""
        for sequence in self._on(worker):
            self._over(sequence, good=False, tried=False)

    def expire(self) -> None:
        for sequence in list(self._open.values()):
            if sequence.request.deadline <= self.now:
                self._over(sequence, good=False)

    def stop(self) -> None:
        for sequence in list(self._open.values()):
            self._over(sequence, good=False, tried=False)

    def suspect(self, leg: LegBook, closed: events.LegClosed) -> None:
        """Of a client's pair, if its hand-over failed."""
        failed = closed.error is not None and closed.error.code.startswith("kv_")
        pair = leg.sequence.pair
        if leg.sequence.request.canary or pair is None or leg.cancelled_at is not None:
            return
        for worker in pair if failed and self._bounds.canary_seconds else ():
            if worker.aggregated:
                continue  # no KV moves there
            here = self._books.workers.get(worker.key) is worker
            if here and not worker.past.out and worker not in self._trials:
                due = self.now + FIRST_PAUSE_SECONDS
                self._trials[worker] = Trial(due, due)

    def terminated(self, sequence: SequenceBook) -> None:
        """A worker says that a hook ended it, which none may have seen."""
        self._over(sequence, good=False)

    def closed(self, leg: LegBook, closed: events.LegClosed) -> None:
        sequence = leg.sequence
        if sequence.stage == "ended":
            return
        well = closed.outcome in (Outcome.FINISHED, Outcome.TERMINATED)
        tried = not isinstance(closed.error, QueueFullError | DrainingError)
        if leg.phase is Phase.DECODE:
            self._over(sequence, good=closed.outcome is Outcome.FINISHED, tried=tried)
        elif not well and not (closed.outcome is Outcome.LOST and sequence.shown):
            self._over(sequence, good=False, tried=tried)

    def _over(self, sequence: SequenceBook, *, good: bool, tried: bool = True) -> None:
        """`tried`: not, where a worker was full or shut down."""
        if self._open.pop(sequence.key[1], None) is None:
            return
        sequence.stage = "ended"
        pair = sequence.pair
        assert pair is not None
        if not good and tried:
            self._failed.append((pair[0].key, pair[1].key))
        for worker in pair:
            if good:
                self.prove(worker)
            elif trial := self._trials.get(worker):
                failures = trial.failures if tried else 0
                pause = min(FIRST_PAUSE_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS)
                trial.after, trial.by = self.now + pause / 2, self.now + pause
                trial.failures, trial.paused = trial.failures + tried, True

    def prove(self, worker: WorkerBook) -> None:
        self._trials.pop(worker, None)
        if not worker.proved:
            worker.proved = True
            if self._books.workers.get(worker.key) is worker:
                self.proved.append(worker)

    # --- what the core did ---

    def judge_start(self, action: actions.StartLeg) -> LegBook:
        """The leg; its sequence begins with the first of two."""
        command = action.command
        worker = self._books.workers[action.worker]
        sequence = self._open.get(command.sequence)
        if sequence is None:
            sequence = self._begin(action, worker)
        phase, tokens = worker.profile.phase, len(action.task)
        room, hold = command.room, command.hold_output
        leg = LegBook(action.leg, worker, phase, sequence, room, hold, tokens)
        if worker.free < 1 or not worker.fit or self._on(worker, sequence):
            self._fault(f"a canary is started on {worker}, which takes none or runs one")
        told = command.destination, command.output_index, command.parent_span
        if told != (0, 0, 0) or action.request or command.hold_output or command.context_only:
            self._fault(f"a canary is started as no canary: {action}")
        if leg.phase is Phase.PREFILL:
            sequence.prefill = leg
        else:
            sequence.decode = leg
            self._pair(action, sequence, leg)
        return leg

    def _begin(self, action: actions.StartLeg, worker: WorkerBook) -> SequenceBook:
        command = action.command
        if command.sequence in self._numbers or self._books.draining:
            self._fault(f"canary {command.sequence} is started twice, or while the router drains")
        self._numbers.add(command.sequence)
        make = make_of(worker.profile)
        seconds = self._bounds.canary_seconds
        submit = submits.submit(
            command.sequence,
            frontend=0,
            n=1,
            model=make[0],
            timeout_seconds=seconds,
            task=action.task,
        )
        request = RequestBook(submit, make, self.now, self.now + seconds, canary=True)
        sequence = SequenceBook(request, (0, command.sequence), 0, 0, self.now, stage="running")
        request.sequences.append(sequence)
        self._open[command.sequence] = sequence
        if len(self._open) > MOST_OPEN:
            self._fault(f"{len(self._open)} canaries run")
        return sequence

    def _pair(self, action: actions.StartLeg, sequence: SequenceBook, decode: LegBook) -> None:
        command = action.command
        prefill = sequence.prefill
        if prefill is None or prefill.worker.profile.fingerprint != (
            decode.worker.profile.fingerprint
        ):
            self._fault(f"canary {command.sequence} has no matching pair")
            return
        sequence.pair = pair = prefill.worker, decode.worker
        if command.kv_peer != prefill.worker.profile.kv_endpoint:
            self._fault(f"canary {command.sequence} is sent to {command.kv_peer} for its KV")
        if not any(self._is_due(each) for each in pair):
            self._fault(f"{pair} are tried, and neither is to be, or not yet")
        for worker, other in (pair, pair[::-1]):
            unproved = not worker.proved and not other.proved
            if not unproved and not (other.past.out == "" or not other.proved):
                self._fault(f"{worker} is tried with {other}, which is not whole")

    def _is_due(self, worker: WorkerBook) -> bool:
        trial = self._trials.get(worker)
        return trial is not None and trial.after <= self.now

    def _on(self, worker: WorkerBook, but: SequenceBook | None = None) -> list[SequenceBook]:
        """Those that have not ended, and those that it has an open leg of which is not overdue."""
        legs = [
            each.sequence
            for each in worker.legs.values()
            if each.sequence.request.canary and not each.overdue
        ]
        mine = [each for each in self._open.values() if each.pair and worker in each.pair]
        return [each for each in {*legs, *mine} if each is not but]

    def judge_failed(self, action: actions.CanaryFailed) -> None:
        if (action.prefill, action.decode) not in self._failed:
            self._fault(f"a canary is said to have failed, and has not: {action}")
        else:
            self._failed.remove((action.prefill, action.decode))

    def judge_hanging(self, action: actions.CanaryHangs) -> None:
        keys = [
            each.pair and tuple(worker.key for worker in each.pair) for each in self._open.values()
        ]
        if (action.prefill, action.decode) not in keys or action.seconds < HANGS_SECONDS:
            self._fault(f"a canary is said to hang, and does not: {action}")

    # --- once it has acted ---

    def settle(self, *, ticked: bool) -> None:
        """After an event. `ticked`: time alone has passed, so whoever is due has been tried."""
        if self._failed:
            self._fault(f"nobody says that canaries have failed: {self._failed}")
            self._failed.clear()
        for worker in [each for each in self._trials if each.proved and each.past.out]:
            del self._trials[worker]
        room = not self._books.draining and len(self._open) < MOST_OPEN
        for worker, trial in self._trials.items():
            due = trial.by <= self.now and (ticked or not trial.paused)
            if room and due and not worker.proved and self._could_be_tried(worker):
                self._fault(f"{worker} waits for a canary, and could be tried")

    def _could_be_tried(self, worker: WorkerBook) -> bool:
        return self._is_idle(worker) and any(map(self._is_idle, self._partners(worker)))

    def _is_idle(self, worker: WorkerBook) -> bool:
        return worker.fit and worker.free > 0 and not self._on(worker)

    def _partners(self, worker: WorkerBook) -> Iterator[WorkerBook]:
        for other in self._books.workers.values():
            matches = other.profile.fingerprint == worker.profile.fingerprint
            partner = matches and other.profile.phase is not worker.profile.phase
            if partner and not (other.proved and other.past.out):
                yield other

    def unproved(self) -> list[str]:
        """Those that are fit and have a fit partner."""
        return [
            worker.key
            for worker in self._books.workers.values()
            if not worker.proved
            and worker.fit
            and any(other.fit for other in self._partners(worker))
        ]


def pair_unproved(pair: PairBook | None) -> bool:
    """Whether one of a pair is yet to be proved."""
    return pair is not None and not all(each.proved for each in pair)
