"""A world around the router's core, in virtual time, drawn from one seed.

Frontends submit, cancel and vanish; workers compute, fail, stall, drain, close slowly, die and come
back, sometimes as something that no longer matches; other routers take slots of some of them. Every
message travels on a stream that keeps its order and takes its time, as TCP does; different streams
are independent. After every event the state's invariants and the ledger's rules are checked.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from router_invariants import InvariantError, check
from router_ledger import Ledger

from router.core import actions, events
from router.core.machine import Core
from router.core.values import Bounds, Fingerprint, Outcome, Phase, Profile
from router.policies import LeastLoaded, RoundRobin
from tandem.errors import (
    DrainingError,
    EngineError,
    HookError,
    KvTransferError,
    QueueFullError,
)

FAULTS_END = 20.0
"""Virtual seconds after which nothing new breaks, so that everything must come to rest."""
HORIZON = 60.0
MakeCore = Callable[..., Core]


class Stream:
    """One direction of a connection: in order, each message after a delay of its own."""

    def __init__(self, world: World, deliver: Callable[[Any], None]) -> None:
        self._world = world
        self._deliver = deliver
        self._last = 0.0
        self.open = True

    def send(self, item: Any) -> None:
        delay = self._world.random.choice((0.0, 0.001, 0.01, 0.1))
        self._last = max(self._last, self._world.now + delay)
        self._world.at(self._last, lambda: self._deliver(item) if self.open else None)


class World:
    """One run. `make_core` builds the Core under test; `trace` gets a line for each event."""

    def __init__(
        self, seed: int, make_core: MakeCore = Core, trace: Callable[[str], None] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._trace = trace
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        bounds = Bounds(
            max_queue=self.random.randint(1, 12),
            max_retries=self.random.randint(0, 2),
            settle_seconds=self.random.choice((0.5, 2.0)),
            pair_wait_seconds=self.random.choice((1.0, 5.0)),
        )
        self.core = make_core(
            bounds=bounds,
            prefill_policy=self.random.choice((RoundRobin, LeastLoaded)),
            decode_policy=self.random.choice((RoundRobin, LeastLoaded)),
            new_room=lambda: self.random.getrandbits(63) | 1,
        )
        self.ledger = Ledger(bounds)
        self.events = 0
        self.frontend_numbers = itertools.count(1)
        self.workers = {worker.key: worker for worker in self._draw_workers()}
        self.frontends = [SimFrontend(self) for _ in range(self.random.randint(1, 2))]

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), what))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.at(self.now + seconds, what)

    def run(self) -> None:
        """To the end. Raises InvariantError at the first broken rule."""
        for worker in self.workers.values():
            self.at(self.random.choice((0.0, 0.0, 0.5)), worker.connect)
        for frontend in self.frontends:
            frontend.connect()
        self._tick()
        while self._agenda:
            self.now, _, what = heapq.heappop(self._agenda)
            what()
        self._must_be_at_rest()

    def feed(self, event: events.Event) -> None:
        """Give the core one event and carry out its actions."""
        self._step(())
        self._step((event,))

    def _step(self, batch: tuple[events.Event, ...]) -> None:
        self.events += len(batch)
        done = self.core.handle(self.now, batch)
        if not batch and not done:
            return
        if self._trace:
            for item in (*batch, *done):
                self._trace(f"{self.now:9.4f}  {'>' if item in batch else '   <'} {item}")
        self.ledger.observe(self.now, batch, done)
        check(self.core.state)
        for action in done:
            self._carry_out(action)

    def _carry_out(self, action: actions.Action) -> None:
        if isinstance(action, actions.StartLeg | actions.ReleaseLeg | actions.CancelLeg):
            self.workers[action.worker].commands.send(action)

    def _tick(self) -> None:
        self.feed(events.Tick())
        if self.now < HORIZON:
            self.later(0.5, self._tick)

    def _draw_workers(self) -> list[SimWorker]:
        return [
            SimWorker(self, phase, index)
            for phase in Phase
            for index in range(self.random.randint(1, 3))
        ]

    def _must_be_at_rest(self) -> None:
        """Nothing is open; legs that a faulty worker never closed go with its connection."""
        if self.core.state.open_sequences or self.ledger.open:
            raise InvariantError(f"sequences never ended: {sorted(self.ledger.open)}")
        for worker in self.workers.values():
            worker.lose()
        state = self.core.state
        left = [state.legs, state.rooms, list(state.waiting), list(state.settling)]
        if any(left) or any(state.frontends.values()):
            raise InvariantError(f"something is left of ended sequences: {left}")


class SimFrontend:
    """Submits and cancels over a stream of its own; may vanish and come back under a new number."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._number = 0
        self._first = 1

    def connect(self) -> None:
        world = self._world
        number = self._number = next(world.frontend_numbers)
        self._out = Stream(world, world.feed)
        world.feed(events.FrontendUp(number))
        for _ in range(world.random.randint(1, 8)):
            world.later(world.random.uniform(0, 8), lambda: self._submit(number))
        if world.random.random() < 0.15:
            world.later(world.random.uniform(1, 10), self._vanish)

    def _submit(self, number: int) -> None:
        draw = self._world.random
        if number != self._number or not self._out.open:
            return
        n = draw.choice((1, 1, 1, 2, 4))
        first, self._first = self._first, self._first + n
        self._out.send(
            events.Submit(
                frontend=number,
                first_sequence=first,
                n=n,
                model=draw.choice(("tiny",) * 12 + ("absent",)),
                timeout_seconds=draw.choice((0.5, 3.0, 15.0)),
                task=b"task",
                prompt_tokens=draw.choice((0, 10, 10, 90)),
                max_tokens=16,
                priority=draw.choice((0, 0, 1)),
                want_report=draw.random() < 0.2,
            )
        )
        if draw.random() < 0.25:
            delay = draw.uniform(0, 3)
            self._world.later(delay, lambda: self._cancel(number, first))

    def _cancel(self, number: int, first: int) -> None:
        if number == self._number and self._out.open:
            self._out.send(events.Cancel(number, first))

    def _vanish(self) -> None:
        self._out.open = False
        self._world.feed(events.FrontendDown(self._number))
        if self._world.now < FAULTS_END / 2:
            self._world.later(1.0, self.connect)


@dataclass(slots=True)
class _SimLeg:
    """What a worker does with a leg. `wish` waits for the release of a held one."""

    held: bool
    closed: bool = False
    wish: events.LegClosed | None = None


class SimWorker:
    """One worker's process; every connection is a life of its own."""

    def __init__(self, world: World, phase: Phase, index: int) -> None:
        self.key = f"{phase.value}-{index}"
        self.phase = phase
        self._world = world
        self.commands = Stream(world, self._command)
        self._answers = Stream(world, world.feed)
        self._legs: dict[int, _SimLeg] = {}
        self._slots = 0
        self._others = 0
        """Legs of other routers."""
        self._draining = False

    def connect(self) -> None:
        world, draw = self._world, self._world.random
        self.commands = Stream(world, self._command)
        self._answers = answers = Stream(world, world.feed)
        self._legs = {}
        self._slots = draw.randint(1, 4)
        self._others = 0
        self._draining = False
        self._has_hook = self.phase is Phase.PREFILL and draw.random() < 0.5
        self._never_closes = draw.random() < 0.05
        profile = Profile(
            name=self.key,
            phase=self.phase if draw.random() > 0.02 else Phase.PREFILL,
            fingerprint=_fingerprint(page_size=1 if draw.random() < 0.06 else 16),
            max_sequences=self._slots,
            context_length=draw.choice((100, 1000, 1000, 1000)),
            kv_endpoint="kv",
            has_hook=self._has_hook,
            propagate_terminate=draw.random() < 0.5,
        )
        world.feed(events.WorkerUp(worker=self.key, listed_as=self.phase, profile=profile))
        if world.now < FAULTS_END:
            self._draw_faults(answers)
            if draw.random() < 0.4:
                self._share(answers)

    def lose(self) -> None:
        """The connection breaks: nothing in flight arrives, either way."""
        if self._answers.open:
            self._answers.open = self.commands.open = False
            self._world.feed(events.WorkerDown(self.key, "its stream broke"))

    def _draw_faults(self, answers: Stream) -> None:
        world, draw = self._world, self._world.random

        def die() -> None:
            if answers.open:
                self.lose()
                world.later(draw.choice((0.0, 0.5, 4.0)), self.connect)

        if draw.random() < 0.35:
            world.later(draw.uniform(0.1, 8), die)
        if draw.random() < 0.15:
            drains = draw.uniform(0.1, 6)
            for after, draining in ((drains, True), (drains + draw.uniform(0.1, 6), False)):
                world.later(after, lambda draining=draining: self._drain(answers, draining))  # type: ignore[misc]

    def _drain(self, answers: Stream, draining: bool) -> None:
        if answers.open:
            self._draining = draining
            answers.send(events.WorkerDraining(self.key, draining))

    def _share(self, answers: Stream) -> None:
        """Other routers come and go; what they hold is told with each report, and not before."""
        if not answers.open:
            return
        world, draw = self._world, self._world.random
        free = self._slots - self._own_legs()
        self._others = draw.randint(0, max(0, free)) if world.now < FAULTS_END else 0
        world.later(draw.choice((0.1, 0.5)), lambda: self._report(answers))
        if world.now < FAULTS_END:
            world.later(1.0, lambda: self._share(answers))

    def _report(self, answers: Stream) -> None:
        answers.send(events.WorkerLoad(self.key, self._own_legs() + self._others))

    def _own_legs(self) -> int:
        return sum(not leg.closed for leg in self._legs.values())

    def _command(self, action: actions.Action) -> None:
        if isinstance(action, actions.StartLeg):
            self._start(action)
        elif isinstance(action, actions.ReleaseLeg):
            self._release(action.leg)
        elif isinstance(action, actions.CancelLeg):
            self._cancel(action.leg)

    def _start(self, action: actions.StartLeg) -> None:
        full = self._own_legs() + self._others >= self._slots
        self._legs[action.leg] = _SimLeg(action.hold_output, closed=self._draining or full)
        if self._draining or full:
            error = DrainingError("it drains") if self._draining else QueueFullError("it is full")
            refused = events.LegClosed(
                self.key, action.leg, Outcome.FAILED, error=error, retryable=True
            )
            self._answers.send(refused)
            return
        (self._prefill if self.phase is Phase.PREFILL else self._decode)(action)

    def _prefill(self, action: actions.StartLeg) -> None:
        draw = self._world.random
        computed = draw.choice((0.0, 0.05, 0.5, 2.0))
        if draw.random() < 0.1:
            return  # stalls
        if self._has_hook and draw.random() < 0.95:
            verdict = events.LegVerdict(self.key, action.leg, draw.random() < 0.2, "unwanted")
            self._in(computed, action.leg, lambda: self._answers.send(verdict))
        outcome = draw.choice((Outcome.FINISHED,) * 7 + (Outcome.FAILED, Outcome.TERMINATED))
        self._in(computed + 0.1, action.leg, lambda: self._close(action.leg, outcome))

    def _decode(self, action: actions.StartLeg) -> None:
        draw = self._world.random
        arrives = draw.choice((0.1, 0.6, 2.1))
        if draw.random() < 0.1:
            return  # waits for KV that never comes
        if draw.random() < 0.9:
            started = events.LegStarted(self.key, action.leg)
            self._in(arrives, action.leg, lambda: self._answers.send(started))
        outcome = draw.choice(
            (Outcome.FINISHED,) * 6
            + (Outcome.FAILED, Outcome.TERMINATED, Outcome.CANCELLED, Outcome.REGENERATE)
        )
        ends = arrives + draw.choice((0.0, 0.2, 3.0))
        self._in(ends, action.leg, lambda: self._close(action.leg, outcome))

    def _in(self, seconds: float, leg: int, what: Callable[[], None]) -> None:
        legs = self._legs

        def act() -> None:
            if legs is self._legs and not legs[leg].closed:
                what()

        self._world.later(seconds, act)

    def _close(self, number: int, outcome: Outcome) -> None:
        leg, draw = self._legs[number], self._world.random
        error = draw.choice((EngineError, KvTransferError, HookError))("it failed")
        closed = events.LegClosed(
            self.key,
            number,
            outcome,
            reason="unwanted" if outcome is Outcome.TERMINATED else "",
            error=error if outcome is Outcome.FAILED else None,
            retryable=outcome is Outcome.FAILED and draw.random() < 0.7,
        )
        if leg.held and outcome in (Outcome.FINISHED, Outcome.TERMINATED) and draw.random() < 0.97:
            leg.wish = closed
            return
        leg.closed = True
        self._answers.send(closed)

    def _release(self, number: int) -> None:
        leg = self._legs[number]
        leg.held = False
        if leg.wish is not None and not leg.closed:
            leg.closed = True
            self._answers.send(leg.wish)

    def _cancel(self, number: int) -> None:
        draw = self._world.random
        if self._legs[number].closed or self._never_closes:
            return
        delay = draw.choice((0.0, 0.0, 0.05, 0.4, 5.0))
        self._in(delay, number, lambda: self._close(number, Outcome.CANCELLED))


def _fingerprint(page_size: int) -> Fingerprint:
    return Fingerprint("tiny", "1", "sim", "1", "f32", page_size, "f32", "nhd", 1, "ab", 1)
