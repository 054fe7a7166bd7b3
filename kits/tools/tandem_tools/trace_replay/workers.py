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
from tandem_tools.trace_replay.engine import Engine
from tandem_tools.trace_replay.fleet import Pool
from tandem_tools.trace_replay.legs import HandOver, Leg, Worker
from tandem_tools.trace_replay.prefix_cache import PrefixCache
from tandem_tools.trace_replay.times import Curve, Times


@dataclass(slots=True, frozen=True, kw_only=True)
class Around:
    """What a worker stands in."""

    agenda: Agenda
    times: Times
    tell: Callable[[Worker], object]
    """Lets a worker report to every router."""
    early_reports: float
    """The most a second beside the regular ones."""

    def reports(self, worker: Worker, pool: Pool, log: PrefixLog | None) -> Reports:
        """Make the reports of a worker, as a real one makes them."""
        return Reports(
            partial(self.tell, worker),
            slots=pool.slots,
            early_a_second=self.early_reports,
            prefixes=log,
            clock=lambda: self.agenda.now,
            later=self.agenda.after,
        )


class Slots:
    """The legs that are open on a worker. One more than it has slots is refused."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.legs: set[Leg] = set()

    def take(self, leg: Leg) -> bool:
        """Give a leg a slot. Returns whether a slot was free; else the leg's router was told."""
        if len(self.legs) >= self._most:
            leg.open = False
            leg.teller.refused(leg)
            return False
        self.legs.add(leg)
        return True

    def leave(self, leg: Leg) -> None:
        """Give back the slot of a leg that is over."""
        leg.open = False
        self.legs.remove(leg)


class Memory:
    """A KV cache. Who does not fit holds up those behind."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: how many it holds; 0: all."""
        self.total = tokens
        self.used = 0
        self._waiting: deque[Leg] = deque()
        self._held: set[Leg] = set()

    def ask(self, leg: Leg) -> None:
        """Wait for room; `admit` says when it is there."""
        self._waiting.append(leg)

    def admit(self) -> Leg | None:
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

    def free(self, leg: Leg) -> None:
        """Free the KV of an ended leg."""
        if leg in self._held:
            self._held.remove(leg)
            self.used -= leg.request.kv_tokens
        else:
            self._waiting.remove(leg)


class PrefillWorker:
    """Computes prompts, keeps what it can of them, and hands their KV over."""

    def __init__(
        self, up: WorkerUp, pool: Pool, around: Around, engine: Engine | None = None
    ) -> None:
        """`engine`: the one that its decode worker has, too. Then nothing is handed over, and a
        prompt is not computed before there is room for it in the KV cache that it stays in.
        """
        self.up = up
        self._alone = engine is None
        self._slots = Slots(pool.slots)
        self._cache = PrefixCache(pool.cache_tokens // BLOCK_TOKENS)
        self._engine = engine or Engine(around.agenda, around.times)
        self._engine.uncached, self._engine.computed = self._uncached, self._computed
        self._to_compute = 0
        self._agenda = around.agenda
        self._transfer_seconds = Curve(around.times.transfer_ms)
        self._reports = around.reports(self, pool, self._cache.log)

    def start(self, leg: Leg) -> None:
        if self._slots.take(leg):
            self._to_compute += leg.to_compute
            self._reports.began(leg, leg.to_compute, leg.new_blocks)
            if self._alone:
                self._engine.compute(leg)
            else:
                leg.hand_over.ready()

    def cancel(self, leg: Leg) -> None:
        self._engine.drop(leg)
        self._leave(leg)

    def report(self) -> None:
        self._reports.tell()

    def loads(self) -> Callable[[], WorkerLoad]:
        return partial(self._load, self._cache.log.reader())

    def _load(self, told: PrefixReader) -> WorkerLoad:
        load = worker_pb2.Load(
            open_legs=len(self._slots.legs), prompt_tokens=self._to_compute, cache=told.take()
        )
        return WorkerLoad(self.up.worker, load)

    def _uncached(self, leg: Leg) -> int:
        return leg.request.match(self._cache.match(leg.request.blocks))

    def _computed(self, leg: Leg) -> None:
        self._cache.add(leg.request.blocks)
        if not leg.open:
            return
        if self._alone:
            leg.hand_over.ready()
        else:
            leg.hand_over.done()

    def go_on(self, hand_over: HandOver) -> None:
        """Move the KV, beside whatever else moves."""
        leg = hand_over.prefill
        assert leg is not None
        if self._alone:
            self._agenda.after(self._transfer_seconds(leg.request.prompt_tokens), hand_over.done)
        elif leg.open:
            self._engine.compute(leg)

    def moved(self, leg: Leg) -> None:
        """Finish a leg whose KV has reached decode."""
        self._leave(leg)
        leg.teller.finished(leg)

    def _leave(self, leg: Leg) -> None:
        self._to_compute -= leg.to_compute
        self._slots.leave(leg)
        self._reports.ended(leg, leg.to_compute)


class DecodeWorker:
    """Takes KV in, and generates."""

    def __init__(self, up: WorkerUp, pool: Pool, around: Around, engine: Engine) -> None:
        self.up = up
        self._slots = Slots(pool.slots)
        self._memory = Memory(pool.kv_tokens)
        self._engine = engine
        self._engine.generated = self._generated
        self._reports = around.reports(self, pool, None)

    def start(self, leg: Leg) -> None:
        if self._slots.take(leg):
            self._reports.began(leg, leg.request.prompt_tokens)
            self._memory.ask(leg)
            self._admit()

    def cancel(self, leg: Leg) -> None:
        self._engine.drop(leg)
        self._leave(leg)

    def report(self) -> None:
        self._reports.tell()

    def loads(self) -> Callable[[], WorkerLoad]:
        return self._load

    def _load(self) -> WorkerLoad:
        memory = self._memory
        load = worker_pb2.Load(
            open_legs=len(self._slots.legs),
            kv_tokens_used=memory.used,
            kv_tokens_total=memory.total,
        )
        return WorkerLoad(self.up.worker, load)

    def go_on(self, hand_over: HandOver) -> None:
        raise AssertionError("prefill is told")

    def moved(self, leg: Leg) -> None:
        """The leg's KV has arrived here, and its first token."""
        leg.teller.started(leg)
        if leg.request.later_tokens:
            self._engine.generate(leg, leg.request.later_tokens)
        else:
            self._generated(leg)

    def _generated(self, leg: Leg) -> None:
        self._leave(leg)
        leg.teller.finished(leg)

    def _admit(self) -> None:
        while leg := self._memory.admit():
            leg.hand_over.ready()

    def _leave(self, leg: Leg) -> None:
        self._slots.leave(leg)
        self._reports.ended(leg, leg.request.prompt_tokens)
        self._memory.free(leg)
        self._admit()
