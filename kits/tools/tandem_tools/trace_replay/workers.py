"""Workers as routers see them: slots, a KV cache, reports, and an engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tandem.engine.prefix_log import PrefixLog, PrefixReader
from tandem.prefix_blocks import BLOCK_TOKENS
from tandem.v1 import worker_pb2
from tandem.worker.reports import Reports
from tandem_router.core.events import WorkerLoad, WorkerUp
from tandem_tools.trace_replay.agenda import Agenda
from tandem_tools.trace_replay.engine import ReplayedEngine
from tandem_tools.trace_replay.fleet import ReplayedPool
from tandem_tools.trace_replay.legs import HandOver, ReplayedLeg
from tandem_tools.trace_replay.prefix_cache import ReplayedPrefixCache
from tandem_tools.trace_replay.times import Curve, Times


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerSurroundings:
    """What a worker stands in."""

    agenda: Agenda
    times: Times
    tell: Callable[[ReplayedWorker], object]
    """Lets a worker report to every router."""
    early_reports: float
    """The most a second beside the regular ones."""


class ReplayedCache:
    """A KV cache. Who does not fit holds up those behind."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: how many it holds; 0: all."""
        self.total = tokens
        self.used = 0
        self._waiting: deque[ReplayedLeg] = deque()
        self._held: set[ReplayedLeg] = set()

    def ask(self, leg: ReplayedLeg) -> None:
        """Wait for room; `admit` says when it is there."""
        self._waiting.append(leg)

    def admit(self) -> ReplayedLeg | None:
        """The next one, if there is room for it now. One that could never fit is let in alone."""
        if not self._waiting:
            return None
        tokens = self._waiting[0].request.kv_tokens
        if self.total and self.used and self.used + tokens > self.total:
            return None
        leg = self._waiting.popleft()
        self._held.add(leg)
        self.used += tokens
        return leg

    def free(self, leg: ReplayedLeg) -> None:
        """Free the KV of an ended leg."""
        if leg in self._held:
            self._held.remove(leg)
            self.used -= leg.request.kv_tokens
        else:
            self._waiting.remove(leg)


class ReplayedWorker:
    """What workers of both phases do: take legs into slots, and tell routers what they have."""

    def __init__(
        self,
        up: WorkerUp,
        pool: ReplayedPool,
        around: WorkerSurroundings,
        engine: ReplayedEngine,
        log: PrefixLog | None,
    ) -> None:
        """`up`: the event that tells routers about the worker. `log`: of its cache of prompts."""
        self.up = up
        self._engine = engine
        self._slots = pool.slots
        self._legs: set[ReplayedLeg] = set()
        self._reports = Reports(
            partial(around.tell, self),
            slots=pool.slots,
            early_a_second=around.early_reports,
            prefixes=log,
            clock=lambda: around.agenda.now,
            later=around.agenda.after,
        )

    def start(self, leg: ReplayedLeg) -> None:
        """A leg has reached the worker. One more than it has slots is refused."""
        if len(self._legs) >= self._slots:
            leg.open = False
            leg.router.refused(leg)
            return
        self._legs.add(leg)
        self._begin(leg)

    def cancel(self, leg: ReplayedLeg) -> None:
        """Forget a leg that is open here."""
        self._engine.drop(leg)
        self._leave(leg)

    def report(self) -> None:
        """Tell the routers what the worker has, as workers do each second."""
        self._reports.tell()

    def loads(self) -> Callable[[], WorkerLoad]:
        """For a router that has just come: gives at each call what that one is to know."""
        raise NotImplementedError

    def go_on(self, hand_over: HandOver) -> None:
        """The leg and its partner are ready. Prefill is told, for both."""
        raise NotImplementedError

    def moved(self, leg: ReplayedLeg) -> None:
        """The KV of a leg that is open here has moved, from here or to here."""
        raise NotImplementedError

    def _begin(self, leg: ReplayedLeg) -> None:
        raise NotImplementedError

    def _leave(self, leg: ReplayedLeg) -> None:
        leg.open = False
        self._legs.remove(leg)


class PrefillWorker(ReplayedWorker):
    """Computes prompts, keeps what it can of them, and hands their KV over."""

    def __init__(
        self,
        up: WorkerUp,
        pool: ReplayedPool,
        around: WorkerSurroundings,
        engine: ReplayedEngine | None = None,
    ) -> None:
        """`engine`: the one that its decode worker has, too. Then nothing is handed over, and a
        prompt is not computed before there is room for it in the KV cache that it stays in.
        """
        self._cache = ReplayedPrefixCache(pool.cache_tokens // BLOCK_TOKENS)
        own = engine or ReplayedEngine(around.agenda, around.times)
        super().__init__(up, pool, around, own, self._cache.log)
        self._alone = engine is None
        own.uncached, own.computed = self._uncached, self._computed
        self._to_compute = 0
        self._agenda = around.agenda
        self._transfer_seconds = Curve(around.times.transfer_ms)

    def loads(self) -> Callable[[], WorkerLoad]:
        return partial(self._load, self._cache.log.reader())

    def go_on(self, hand_over: HandOver) -> None:
        """Move the KV, beside whatever else moves."""
        leg = hand_over.prefill
        assert leg is not None
        if self._alone:
            self._agenda.after(self._transfer_seconds(leg.request.prompt_tokens), hand_over.done)
        elif leg.open:
            self._engine.compute(leg)

    def moved(self, leg: ReplayedLeg) -> None:
        """Finish a leg whose KV has reached decode."""
        self._leave(leg)
        leg.router.finished(leg)

    def _begin(self, leg: ReplayedLeg) -> None:
        self._to_compute += leg.to_compute
        self._reports.began(leg, leg.to_compute, leg.new_blocks)
        if self._alone:
            self._engine.compute(leg)
        else:
            leg.hand_over.ready()

    def _load(self, told: PrefixReader) -> WorkerLoad:
        load = worker_pb2.Load(
            open_legs=len(self._legs), prompt_tokens=self._to_compute, cache=told.take()
        )
        return WorkerLoad(self.up.worker, load)

    def _uncached(self, leg: ReplayedLeg) -> int:
        return leg.request.match(self._cache.match(leg.request.blocks))

    def _computed(self, leg: ReplayedLeg) -> None:
        self._cache.add(leg.request.blocks)
        if not leg.open:
            return
        if self._alone:
            leg.hand_over.ready()
        else:
            leg.hand_over.done()

    def _leave(self, leg: ReplayedLeg) -> None:
        self._to_compute -= leg.to_compute
        super()._leave(leg)
        self._reports.ended(leg, leg.to_compute)


class DecodeWorker(ReplayedWorker):
    """Takes KV in, and generates."""

    def __init__(
        self, up: WorkerUp, pool: ReplayedPool, around: WorkerSurroundings, engine: ReplayedEngine
    ) -> None:
        super().__init__(up, pool, around, engine, None)
        self._memory = ReplayedCache(pool.kv_tokens)
        engine.generated = self._generated

    def loads(self) -> Callable[[], WorkerLoad]:
        return self._load

    def _load(self) -> WorkerLoad:
        load = worker_pb2.Load(
            open_legs=len(self._legs),
            kv_tokens_used=self._memory.used,
            kv_tokens_total=self._memory.total,
        )
        return WorkerLoad(self.up.worker, load)

    def moved(self, leg: ReplayedLeg) -> None:
        """The leg's KV has arrived here, and its first token."""
        leg.router.started(leg)
        if leg.request.later_tokens:
            self._engine.generate(leg, leg.request.later_tokens)
        else:
            self._generated(leg)

    def _begin(self, leg: ReplayedLeg) -> None:
        self._reports.began(leg, leg.request.prompt_tokens)
        self._memory.ask(leg)
        self._admit()

    def _generated(self, leg: ReplayedLeg) -> None:
        self._leave(leg)
        leg.router.finished(leg)

    def _admit(self) -> None:
        while leg := self._memory.admit():
            leg.hand_over.ready()

    def _leave(self, leg: ReplayedLeg) -> None:
        super()._leave(leg)
        self._reports.ended(leg, leg.request.prompt_tokens)
        self._memory.free(leg)
        self._admit()
