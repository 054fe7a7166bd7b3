"""One replay: a trace, a fleet and policies, and what became of every request."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tandem.errors import QueueFullError, TandemError
from tandem.wire import faces
from tandem_router.core.values import Phase, Reason, Way
from tandem_tools.bench.figures import TimedAnswer
from tandem_tools.trace import TracedRequest
from tandem_tools.trace_replay.agenda import Agenda
from tandem_tools.trace_replay.engine import ReplayedEngine
from tandem_tools.trace_replay.fleet import RESTART_SECONDS, FleetFile
from tandem_tools.trace_replay.legs import ReplayedRequest, blocks_of
from tandem_tools.trace_replay.prefix_cache import IdealCache
from tandem_tools.trace_replay.reading import Readings, ReplayedReading
from tandem_tools.trace_replay.router import LINK_SECONDS, Policies, Router, worker_up
from tandem_tools.trace_replay.workers import (
    DecodeWorker,
    PrefillWorker,
    ReplayedWorker,
    WorkerSurroundings,
)

TELLINGS = 100
"""How often a run says how far it is."""
REPORT_SECONDS = 1.0
"""How often a worker says what it has, as workers do."""


@dataclass(slots=True, frozen=True)
class Replayed:
    """What became of the requests of a trace."""

    answers: tuple[TimedAnswer, ...]
    hit_rate: float
    """The share of computed prompts' tokens that the computing worker had cached."""
    ideal_hit_rate: float
    """Hit rate of one cache, as large as the caches of all workers together, that has each prompt
    from its arrival on.
    """
    readings: Readings | None
    """What reading came to; None: it takes no time in this fleet."""
    ways: Counter[tuple[Way, Reason]]
    """How many attempts went to a pair or to an aggregated worker, and why."""


class TraceReplay:
    """Everything of one run. What is drawn at random, the policies' own draws among it, comes from
    the process's generator, which `seed` sets: the same again gives the same again.
    """

    def __init__(
        self,
        fleet: FleetFile,
        policies: Policies,
        trace: Sequence[TracedRequest],
        *,
        speed: float = 1.0,
        seed: int = 1,
    ) -> None:
        """`trace`: in the order of its times. `speed`: how many times as fast its requests come."""
        random.seed(seed)
        self._agenda = Agenda()
        self._fleet = fleet
        reads = fleet.frontends.workers > 0
        self._reading = ReplayedReading(self._agenda, fleet.frontends) if reads else None
        self._overhead_seconds = fleet.table.overhead_ms / 1000
        begins = trace[0].timestamp
        self._requests = [
            ReplayedRequest(line, (line.timestamp - begins) / 1000 / speed) for line in trace
        ]
        self._open = len(trace)
        self._tell_every = max(1, len(trace) // TELLINGS)
        self._tell_share: Callable[[float], None] = lambda _: None
        self._workers = self._build_workers()
        self._ideal = IdealCache(fleet.cache_tokens)
        self._ways: Counter[tuple[Way, Reason]] = Counter()
        """Counts of killed routers."""
        self._new_router = partial(
            Router,
            self._agenda,
            fleet,
            policies,
            self._workers,
            rooms=itertools.count(1).__next__,
            ended=self._ended,
        )
        self._routers = [self._new_router() for _ in range(fleet.routers)]

    def run(self, tell: Callable[[float], None] = lambda _: None) -> Replayed:
        """Until every request has ended. `tell` hears now and then which share of them has."""
        self._tell_share = tell
        for worker in self._workers.values():
            self._agenda.at(random.random() * REPORT_SECONDS, self._report, worker)
        if self._fleet.router_kill_seconds:
            self._agenda.after(self._fleet.router_kill_seconds, self._kill, 0)
        self._come(0)
        self._agenda.run(lambda: self._open)
        computed = [each for each in self._requests if each.first is not None]
        cached = sum(each.cached_tokens for each in computed)
        return Replayed(
            tuple(map(_timed, self._requests)),
            cached / max(1, sum(each.prompt_tokens for each in computed)),
            self._ideal.hit_rate,
            None if self._reading is None else self._reading.read,
            sum((each.ways for each in self._routers), self._ways),
        )

    def _build_workers(self) -> dict[str, ReplayedWorker]:
        fleet, table, agenda = self._fleet, self._fleet.table, self._agenda
        around = WorkerSurroundings(
            agenda=agenda,
            times=table,
            tell=self._tell,
            early_reports=fleet.early_reports_per_second,
        )
        found: list[ReplayedWorker] = []
        for index in range(fleet.prefill.workers):
            up = worker_up(f"prefill-{index:04}", Phase.PREFILL, fleet.prefill)
            found.append(PrefillWorker(up, fleet.prefill, around))
        for index in range(fleet.decode.workers):
            up = worker_up(f"decode-{index:04}", Phase.DECODE, fleet.decode)
            found.append(DecodeWorker(up, fleet.decode, around, ReplayedEngine(agenda, table)))
        for index in range(fleet.aggregated.workers):
            pool, process = fleet.aggregated, f"aggregated-{index:04}"
            engine = ReplayedEngine(agenda, table, chunk_tokens=pool.chunk_tokens)
            prefill, decode = (
                worker_up(faces.key(process, each), each, pool, process=process) for each in Phase
            )
            found.append(PrefillWorker(prefill, pool, around, engine))
            found.append(DecodeWorker(decode, pool, around, engine))
        return {each.up.worker: each for each in found}

    def _come(self, index: int) -> None:
        """A request reaches a frontend; the next one will."""
        request = self._requests[index]
        request.blocks = blocks_of(request.line)
        self._ideal.take(request.blocks, request.prompt_tokens)
        if self._reading is None:
            self._send(request)
        elif not self._reading.take(request, partial(self._send, request)):
            self._ended(request, QueueFullError("too many prompts wait to be read"), False)
        if index + 1 < len(self._requests):
            self._agenda.at(self._requests[index + 1].came, self._come, index + 1)

    def _send(self, request: ReplayedRequest) -> None:
        """The frontend has read a request, and any router gets it."""
        router, delay = random.randrange(len(self._routers)), self._overhead_seconds
        self._agenda.after(delay, self._submit, request, router)

    def _submit(self, request: ReplayedRequest, router: int) -> None:
        """To that router; while that one is away, to any other; or else wait for one."""
        if not self._routers[router].alive:
            alive = [place for place, each in enumerate(self._routers) if each.alive]
            if not alive:
                self._agenda.after(RESTART_SECONDS, self._submit, request, router)
                return
            router = random.choice(alive)
        request.router, request.tried = router, request.tried + 1
        self._routers[router].submit(request)

    def _kill(self, place: int) -> None:
        """A router dies, and later the next one."""
        killed = self._routers[place]
        self._ways += killed.ways
        killed.kill()
        self._agenda.after(RESTART_SECONDS, self._restart, place)
        following = (place + 1) % len(self._routers)
        self._agenda.after(self._fleet.router_kill_seconds, self._kill, following)

    def _restart(self, place: int) -> None:
        """One that knows nothing yet takes a killed router's place."""
        self._routers[place] = self._new_router()

    def _ended(self, request: ReplayedRequest, error: TandemError | None, refused: bool) -> None:
        """A request that a router refused goes to the next, as frontends do it."""
        if refused and request.tried < len(self._routers):
            router = (request.router + 1) % len(self._routers)
            self._agenda.after(LINK_SECONDS, self._submit, request, router)
            return
        request.ended, request.blocks = self._agenda.now, ()
        request.failure = error.code if error is not None else ""
        self._open -= 1
        if self._open % self._tell_every == 0:
            self._tell_share(1 - self._open / len(self._requests))

    def _tell(self, worker: ReplayedWorker) -> None:
        for router in self._routers:
            router.hear(worker)

    def _report(self, worker: ReplayedWorker) -> None:
        worker.report()
        self._agenda.after(REPORT_SECONDS, self._report, worker)


def _timed(request: ReplayedRequest) -> TimedAnswer:
    """As a client would have seen it."""
    came, first, ended = request.came, request.first, request.ended
    assert ended is not None
    later = request.later_tokens
    whole = first is not None and not request.failure
    return TimedAnswer(
        began=came,
        ended=ended,
        failure=request.failure,
        output_tokens=request.line.output_length if whole else 0,
        ttft=None if first is None else first - came,
        itl=(ended - first) / later if whole and later and first is not None else None,
    )
