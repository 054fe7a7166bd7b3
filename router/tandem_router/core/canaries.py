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
from tandem_router.core.actions import CanaryFailed
from tandem_router.core.events import Submit
from tandem_router.core.free import FreeWorkers
from tandem_router.core.lifecycle import Lifecycle
from tandem_router.core.picking import Pair
from tandem_router.core.sequences import Leg, Request, Sequence, Stage
from tandem_router.core.state import State
from tandem_router.core.timers import Timers
from tandem_router.core.values import Fingerprint, Phase, Profile
from tandem_router.core.worker import Worker

MOST_OPEN = 32
"""At once, over all workers."""
FIRST_PAUSE_SECONDS = 1.0
"""After a canary that failed, before the next of its workers; twice as long each further time. Up
to half of it is taken off at random: routers that have got in each other's way do not do so again.
"""
LONGEST_PAUSE_SECONDS = 60.0
_NO_FRONTEND = 0
"""What a canary's output is for: frontends are numbered from 1."""
_MAX_REASON = 200
_HASTES = 1000
_UNPROVED = "it has not moved KV yet"


@dataclass(slots=True, eq=False)
class Doubt:
    """A worker that is to be tried."""

    worker: Worker
    failures: int = 0
    """Canaries that failed, one after the other."""
    haste: float = 0.0
    """What is taken off its next pause, from 0 to a half of it: random."""
    until: float = 0.0
    """When it may choose a partner again."""
    tried: set[str] = field(default_factory=set)
    """Addresses of partners that it failed with."""


@dataclass(slots=True, eq=False)
class Line:
    """Workers of one group and phase that are to be tried and run no canary."""

    ready: dict[Worker, Doubt] = field(default_factory=dict)
    """Those whose pause is over: first come, first tried."""
    unproved: dict[Worker, None] = field(default_factory=dict)
    """Those that may be each other's partner, paused or not; the one tried last at the end."""


class Canaries:
    """Decides which worker is tried with which. At most one canary runs on a worker."""

    def __init__(
        self, state: State, lifecycle: Lifecycle, task: Callable[[Profile], bytes]
    ) -> None:
        """`task` makes what a canary asks of workers of a profile."""
        self._state = state
        self._lifecycle = lifecycle
        self._task = task
        self._numbers = count(1)
        self._doubts: dict[Worker, Doubt] = {}
        self._lines: dict[tuple[Fingerprint, Phase], Line] = {}
        self._pauses: Timers[Doubt] = Timers()
        self._open = 0
        """Canaries that have not ended; of others legs may be left."""

    def first_doubt(self, profile: Profile) -> str:
        """Why a worker that comes up is to be proved first, for people; empty: it is not."""
        unproved = self._state.bounds.canary_seconds and not profile.moved_kv
        return _UNPROVED if unproved else ""

    def update(self, worker: Worker) -> None:
        """Take in that a worker has come or gone, or that its standing or what it takes changed."""
        if not self._is_here(worker):
            self._doubts.pop(worker, None)
        elif worker.unproved:
            self._doubts.setdefault(worker, Doubt(worker))
        elif not worker.record.whole:
            self._doubts.pop(worker, None)
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
        for worker, other in (sequence.pair, sequence.pair[::-1]):
            if self._is_here(worker) and worker.record.whole and worker not in self._doubts:
                doubt = self._doubts[worker] = Doubt(worker, tried={other.key})
                self._pause(doubt, FIRST_PAUSE_SECONDS)

    @property
    def wakes_at(self) -> float:
        """When the next pause is over."""
        return self._pauses.first

    def expire(self) -> None:
        """Workers whose pauses are over may be tried again."""
        for doubt in self._pauses.due(self._lifecycle.now):
            self._line_up(doubt.worker)
            self._lifecycle.may_start = True

    def stop(self) -> None:
        """End those that run: the router shuts down."""
        for sequence in dict.fromkeys(self._state.canaries.values()):
            self._end(sequence, DrainingError("the router is shutting down"))

    @property
    def waiting(self) -> bool:
        """A canary has ended and nobody has acted on its end, or a canary is to be started."""
        lifecycle = self._lifecycle
        return bool(self._lines or lifecycle.ended_canaries or lifecycle.canary_legs_over)

    def take_ended(self) -> list[Worker]:
        """Act on the ends of canaries. Returns the workers that are proved by them."""
        lifecycle, proved = self._lifecycle, list[Worker]()
        ended, lifecycle.ended_canaries = lifecycle.ended_canaries, []
        over, lifecycle.canary_legs_over = lifecycle.canary_legs_over, []
        for sequence, error in ended:
            pair = sequence.pair
            assert pair is not None
            self._open -= 1
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
        for line in list(self._lines.values()):
            while self._open < MOST_OPEN and self._start_one(line):
                pass

    def _start_one(self, line: Line) -> bool:
        """Whether one of the line is tried now."""
        doubt = next((each for each in line.ready.values() if each.worker.free), None)
        partner = None if doubt is None else self._partner(doubt)
        if doubt is None or partner is None:
            return False
        return self._begin(doubt.worker, partner)

    def _partner(self, doubt: Doubt) -> Worker | None:
        """One that is proved, or for an unproved worker another such; none again as long as there
        are others.
        """
        tried = doubt.tried
        enough = len(tried) + 1
        found = [*islice(self._proved_partners(doubt.worker), enough)]
        if doubt.worker.unproved and all(each.key in tried for each in found):
            found += islice(self._unproved_partners(doubt.worker), enough)
        if found and all(each.key in tried for each in found):
            tried.clear()
        return next((each for each in found if each.key not in tried), None)

    def _proved_partners(self, worker: Worker) -> Iterator[Worker]:
        """Those that are whole and run no canary, from the least loaded."""
        side, running = self._state.fleet.partners(worker), self._state.canaries
        free = FreeWorkers(side.indexes() if side else [])
        return (each for each in free.by_load() if each.record.whole and each not in running)

    def _unproved_partners(self, worker: Worker) -> Iterator[Worker]:
        """From the one that was tried longest ago."""
        other = Phase.DECODE if worker.phase is Phase.PREFILL else Phase.PREFILL
        line = self._lines.get((worker.profile.fingerprint, other), Line())
        return (each for each in line.unproved if each.free)

    def _begin(self, worker: Worker, partner: Worker) -> bool:
        """Start a canary on this pair. Returns whether there was memory for the canary."""
        state, now = self._state, self._lifecycle.now
        pair = Pair(worker, partner)
        if worker.phase is Phase.DECODE:
            pair = Pair(partner, worker)
        fingerprint, seconds = worker.profile.fingerprint, state.bounds.canary_seconds
        submit = Submit(
            frontend=_NO_FRONTEND,
            first_sequence=next(self._numbers),
            n=1,
            model=fingerprint.model,
            tokenizer_sha256=fingerprint.tokenizer_sha256,
            timeout_seconds=seconds,
            task=self._task(worker.profile),
        )
        allotment = state.budget.allotment()
        try:
            allotment.admit(len(submit.task))
        except QueueFullError:
            return False
        edition = fingerprint.edition
        request = Request(submit, edition, now, now + seconds, 1, allotment, canary=True)
        sequence = Sequence(request, submit.first_sequence, 0, (0, 0), now)
        request.sequences.append(sequence)
        self._open += 1
        state.deadlines.set(request, request.deadline)
        for each in pair:
            state.canaries[each] = sequence
            self._line_up(each)
        self._lifecycle.start_canary(sequence, pair)
        for each in pair:
            if each in self._doubts:
                self._doubts[each].haste = sequence.room % _HASTES / _HASTES / 2
        return True

    def _release(self, worker: Worker) -> None:
        """It may be tried again, if its canary has ended and no leg of that is left there but one
        that it does not close: else it would not be tried for as long as it lives.
        """
        sequence = self._state.canaries.get(worker)
        if sequence is not None and sequence.stage is Stage.ENDED:
            leg = sequence.prefill if worker.phase is Phase.PREFILL else sequence.decode
            if leg is None or leg.overdue:
                del self._state.canaries[worker]
        self._line_up(worker)

    def _end(self, sequence: Sequence, error: TandemError) -> None:
        if sequence.stage is not Stage.ENDED:
            self._lifecycle.end(sequence, error=error)

    def prove(self, *workers: Worker) -> list[Worker]:
        """KV has moved to or from them. Returns those that had yet to be proved."""
        proved = [each for each in workers if each.unproved and self._is_here(each)]
        for each in workers:
            each.unproved = ""
            self._doubts.pop(each, None)
        return proved

    def _failed(self, pair: Pair, error: TandemError | None) -> None:
        """Those are tried again that are yet to be proved, or suspected. A worker that was full or
        shut down has not tried.
        """
        reason = "a hook ended it" if error is None else f"{error.code}: {error.message}"
        tried = not isinstance(error, QueueFullError | DrainingError)
        for worker, other in (pair, pair[::-1]):
            doubt = self._doubts.get(worker)
            if doubt is None:
                continue
            pause = FIRST_PAUSE_SECONDS
            if tried:
                pause = min(pause * 2.0 ** min(doubt.failures, 32), LONGEST_PAUSE_SECONDS)
                doubt.failures += 1
                doubt.tried.add(other.key)
            if tried and worker.unproved:
                worker.unproved = f"{_UNPROVED}: {reason:.{_MAX_REASON}}"
            self._pause(doubt, pause * (1 - doubt.haste))
        self._state.fleet.rejected.clear()
        if tried:
            told = CanaryFailed(pair.prefill.key, pair.decode.key, reason)
            self._lifecycle.actions.append(told)

    def _pause(self, doubt: Doubt, seconds: float) -> None:
        doubt.until = self._lifecycle.now + seconds
        self._pauses.set(doubt, doubt.until)

    def _line_up(self, worker: Worker) -> None:
        """Put it into its line, or take it out, as it is now."""
        where = worker.profile.fingerprint, worker.phase
        line = self._lines.get(where) or Line()
        doubt = self._doubts.get(worker)
        if doubt is None or not worker.fit or worker in self._state.canaries:
            line.ready.pop(worker, None)
            line.unproved.pop(worker, None)
        else:
            if worker.unproved:
                line.unproved.setdefault(worker)
            if doubt.until <= self._lifecycle.now:
                line.ready.setdefault(worker, doubt)
        if line.ready or line.unproved:
            self._lines[where] = line
        else:
            self._lines.pop(where, None)

    def _is_here(self, worker: Worker) -> bool:
        return self._state.fleet.workers.get(worker.key) is worker
