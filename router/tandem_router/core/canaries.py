"""Canaries: hand-overs of a few tokens, of the router's own, that find out whether KV moves.

A worker that has moved none since its start gets no client's request before a canary proves it. One
whose hand-over of a client's request failed is suspected: it goes on, while canaries try it with
others, so that whoever fails with everybody is ejected for those and not for clients' requests.

No client waits for a canary, so it has no place in a queue, no story and no part in the metrics of
requests. Its legs take slots as any do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from tandem.endings import Outcome
from tandem.errors import DrainingError, KvTransferError, QueueFullError, TandemError
from tandem.v1 import router_pb2
from tandem_router.core.actions import CanaryFailed, CanaryHangs
from tandem_router.core.events import Submit
from tandem_router.core.free import FreeWorkers
from tandem_router.core.legs import Legs
from tandem_router.core.lifecycle import Lifecycle
from tandem_router.core.picking import Pair
from tandem_router.core.sequences import Leg, Request, RoutedStage, Sequence
from tandem_router.core.state import State
from tandem_router.core.timers import Timers
from tandem_router.core.trust import Trial
from tandem_router.core.values import MOST_MS, Fingerprint, Phase, Profile, Standing
from tandem_router.core.worker import Worker

MOST_OPEN = 32
"""At once, over all workers."""
HANGS_SECONDS = 30.0
"""A canary that has run for so long is said to hang, and each time that it has run for as long
again."""
_NO_FRONTEND = 0
"""What a canary's output is for: frontends are numbered from 1."""
_HASTES = 1000


@dataclass(slots=True, eq=False)
class Untried:
    """Workers of one group and phase that are to be tried and run no canary."""

    ready: dict[Worker, Trial] = field(default_factory=dict)
    """Workers whose pause is over: first come, first tried."""
    proving: dict[Worker, None] = field(default_factory=dict)
    """Workers that may be each other's partner, paused or not; the one tried last at the end."""


class Canaries:
    """Decides which worker is tried with which. At most one canary runs on a worker."""

    def __init__(
        self, state: State, legs: Legs, lifecycle: Lifecycle, task: Callable[[Profile], bytes]
    ) -> None:
        """`task` makes what a canary asks of workers of a profile."""
        self._state = state
        self._legs = legs
        self._lifecycle = lifecycle
        self._task = task
        self._numbers = count(1)
        self._untried: dict[tuple[Fingerprint, Phase], Untried] = {}
        self._pauses: Timers[Worker] = Timers()
        self._hang_at: dict[Sequence, float] = {}
        """When a canary is said to hang, next."""
        self._open = 0
        """Canaries that have not ended; of others legs may be left."""

    def update(self, worker: Worker) -> None:
        """Take in that a worker has come or gone, or that its standing or what it takes changed."""
        running = self._state.canaries.get(worker)
        shuts_down = worker.draining and not worker.died and self._is_here(worker)
        if shuts_down and running is not None:
            self._end(running, DrainingError("the worker shuts down"))
        self._line_up(worker)

    def suspect(self, leg: Leg, error: TandemError) -> None:
        """A client's leg is about to be closed with an error. Its pair is tried if the hand-over
        failed, a while later: then what else fails there meanwhile asks for no further canary.
        """
        sequence = leg.sequence
        failed = isinstance(error, KvTransferError) and leg.settle_by is None
        if not failed or sequence.request.canary or sequence.pair is None:
            return
        if not self._state.bounds.canary_seconds or leg.worker.aggregated:
            return
        now = self._state.now
        for worker, other in (sequence.pair, sequence.pair[::-1]):
            if self._is_here(worker) and (trial := worker.trust.lost_kv(now, other.key)):
                self._pauses.set(worker, trial.until)

    @property
    def wakes_at(self) -> float:
        """When the next pause is over, or the next canary is said to hang."""
        return min((self._pauses.first, *self._hang_at.values()))

    def expire(self) -> None:
        """Workers whose pauses are over may be tried again; and canaries may hang."""
        for sequence in [each for each, at in self._hang_at.items() if at <= self._state.now]:
            self._say_hanging(sequence)
        for worker in self._pauses.due(self._state.now):
            self._line_up(worker)
            self._state.may_start = True

    def _say_hanging(self, sequence: Sequence) -> None:
        pair, now = sequence.pair, self._state.now
        assert pair is not None
        self._hang_at[sequence] = now + HANGS_SECONDS
        seconds = now - sequence.request.arrived
        self._state.actions.append(CanaryHangs(pair.prefill.key, pair.decode.key, seconds))

    def stop(self) -> None:
        """End those that run: the router shuts down."""
        for sequence in dict.fromkeys(self._state.canaries.values()):
            self._end(sequence, DrainingError("the router is shutting down"))

    @property
    def waiting(self) -> bool:
        """A canary has ended and nobody has acted on its end, or a canary is to be started."""
        state = self._state
        return bool(self._untried or state.ended_canaries or state.canary_legs_over)

    def take_ended(self) -> list[Worker]:
        """Act on the ends of canaries. Returns the workers that are proved by them."""
        state, proved = self._state, list[Worker]()
        ended, state.ended_canaries = state.ended_canaries, []
        over, state.canary_legs_over = state.canary_legs_over, []
        for sequence, error in ended:
            pair = sequence.pair
            assert pair is not None
            self._open -= 1
            del self._hang_at[sequence]
            self._state.counts.canaries[sequence.outcome] += 1
            if sequence.outcome == Outcome.FINISHED.value:
                proved += self.prove(*pair)
            else:
                self._failed(pair, error)
            over += pair
        for each in dict.fromkeys(over):
            self._release(each)
        return proved

    def start(self) -> None:
        """Start what may be started: before what waits, as that waits for those workers too."""
        if self._state.draining:
            return
        for untried in list(self._untried.values()):
            while self._open < MOST_OPEN and self._start_one(untried):
                pass

    def _start_one(self, untried: Untried) -> bool:
        """Try a worker that is ready. Returns whether a canary has started."""
        worker = next((each for each in untried.ready if each.free), None)
        partner = None if worker is None else self._partner(worker, untried.ready[worker])
        return worker is not None and partner is not None and self._begin(worker, partner)

    def _partner(self, worker: Worker, trial: Trial) -> Worker | None:
        """One that is proved, or for an unproved worker another such; none again as long as there
        are others.
        """
        tried = trial.tried
        enough = len(tried) + 1
        found = [*islice(self._proved_partners(worker), enough)]
        if trial.of is Standing.PROVING and all(each.key in tried for each in found):
            found += islice(self._unproved_partners(worker), enough)
        if found and all(each.key in tried for each in found):
            tried.clear()
        return next((each for each in found if each.key not in tried), None)

    def _proved_partners(self, worker: Worker) -> Iterator[Worker]:
        """Partners that are whole and run no canary, from the least loaded."""
        side, running = self._state.fleet.partners(worker), self._state.canaries
        free = FreeWorkers(side.indexes() if side else [])
        whole = (each for each in free.by_load() if each.trust.reputation is Standing.WHOLE)
        return (each for each in whole if each not in running)

    def _unproved_partners(self, worker: Worker) -> Iterator[Worker]:
        """From the one that was tried longest ago."""
        other = Phase.DECODE if worker.phase is Phase.PREFILL else Phase.PREFILL
        untried = self._untried.get((worker.profile.fingerprint, other), Untried())
        return (each for each in untried.proving if each.free)

    def _begin(self, worker: Worker, partner: Worker) -> bool:
        """Start a canary on this pair. Returns whether there was memory for the canary."""
        state, now = self._state, self._state.now
        pair = Pair(worker, partner)
        if worker.phase is Phase.DECODE:
            pair = Pair(partner, worker)
        fingerprint, seconds = worker.profile.fingerprint, state.bounds.canary_seconds
        submit = router_pb2.Submit(
            first_sequence=next(self._numbers),
            n=1,
            model=fingerprint.model,
            tokenizer_sha256=fingerprint.tokenizer_sha256,
            timeout_ms=min(int(seconds * 1000), MOST_MS),
        )
        asked = Submit(_NO_FRONTEND, submit, self._task(worker.profile))
        allotment = state.budget.allotment()
        try:
            allotment.admit(len(asked.task))
        except QueueFullError:
            return False
        edition = fingerprint.edition
        request = Request(asked, edition, now, now + seconds, 1, allotment, canary=True)
        sequence = Sequence(request, submit.first_sequence, 0, (0, 0.0, 0), now)
        request.sequences.append(sequence)
        self._open += 1
        self._hang_at[sequence] = now + HANGS_SECONDS
        state.deadlines.set(request, request.deadline)
        for each in pair:
            state.canaries[each] = sequence
            self._line_up(each)
        self._legs.start_canary(sequence, pair)
        for each in pair:
            if each.trust.trial is not None:
                each.trust.trial.haste = sequence.room % _HASTES / _HASTES / 2
        return True

    def _release(self, worker: Worker) -> None:
        """The worker may be tried again once its canary has ended and left no leg there, but for
        one that the worker does not close: else the worker would never be tried again.
        """
        sequence = self._state.canaries.get(worker)
        if sequence is not None and sequence.stage is RoutedStage.ENDED:
            leg = sequence.prefill if worker.phase is Phase.PREFILL else sequence.decode
            if leg is None or leg.overdue:
                del self._state.canaries[worker]
        self._line_up(worker)

    def _end(self, sequence: Sequence, error: TandemError) -> None:
        if sequence.stage is not RoutedStage.ENDED:
            self._lifecycle.end(sequence, error=error)

    def prove(self, *workers: Worker) -> list[Worker]:
        """KV has moved to or from them. Returns those that had yet to be proved."""
        return [each for each in workers if self._is_here(each) and each.trust.moved_kv()]

    def _failed(self, pair: Pair, error: TandemError | None) -> None:
        """Try workers again that are yet to be proved, or suspected. A worker that was full or shut
        down has not tried.
        """
        reason = "a hook ended it" if error is None else f"{error.code}: {error.message}"
        tried = not isinstance(error, QueueFullError | DrainingError)
        for worker, other in (pair, pair[::-1]):
            if self._is_here(worker) and (trial := worker.trust.trial) is not None:
                trial.failed(self._state.now, other.key, reason if tried else "")
                self._pauses.set(worker, trial.until)
        self._state.fleet.rejected.clear()
        if tried:
            told = CanaryFailed(pair.prefill.key, pair.decode.key, reason)
            self._state.actions.append(told)

    def _line_up(self, worker: Worker) -> None:
        """Put it among the untried of its kind, or take it out, as it is now."""
        kind = worker.profile.fingerprint, worker.phase
        untried, trial = self._untried.get(kind) or Untried(), worker.trust.trial
        may = worker.fit and self._is_here(worker) and worker not in self._state.canaries
        if trial is None or not may:
            untried.ready.pop(worker, None)
            untried.proving.pop(worker, None)
        else:
            if trial.of is Standing.PROVING:
                untried.proving.setdefault(worker)
            if trial.until <= self._state.now:
                untried.ready.setdefault(worker, trial)
        if untried.ready or untried.proving:
            self._untried[kind] = untried
        else:
            self._untried.pop(kind, None)

    def _is_here(self, worker: Worker) -> bool:
        return self._state.fleet.workers.get(worker.key) is worker
