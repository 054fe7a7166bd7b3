"""A router: its core, relay, links, servicer and connections, without gRPC's sockets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

from simulated import halves
from simulated.conduct_rules import ConductRules, Doubtful
from simulated.dice import MOST_PAUSE, Dice
from simulated.dividing import Division, ShareRules
from simulated.garbling import Garbler
from simulated.loop import Process
from simulated.network import CALL, Network
from simulated.router_invariants import check
from simulated.router_rules import RouterRules
from simulated.wire_rules import FrontendFlow, WireRules, WorkerFlow
from tandem.metrics import DrainMetrics
from tandem.v1 import worker_pb2
from tandem_router import translate
from tandem_router.choosing import Failure, GuardedPolicy
from tandem_router.config import RouterConfig
from tandem_router.core.actions import Action, RequestEnded, StartLeg
from tandem_router.core.events import Event, Tick, WorkerLoad
from tandem_router.core.machine import RouterCore
from tandem_router.core.prefixes import BYTES_A_BLOCK, DEFAULT_BYTES
from tandem_router.core.values import Bounds
from tandem_router.discovery import Listing
from tandem_router.links import Sink, WorkerLink
from tandem_router.policies import (
    Candidates,
    LeastLoaded,
    PolicyFactory,
    Prefix,
    Prompt,
    RoundRobin,
)
from tandem_router.policies.base import AnyCandidate
from tandem_router.relay import TICK_SECONDS, Relay
from tandem_router.server import RunningRouter
from tandem_router.servicer import RouterServicer
from tandem_router.vouchers import Vouchers
from tandem_router.workers import Workers

_LATE_SECONDS = 0.001
"""Of a look at the time."""


class ScriptedDiscovery:
    """Gives a router the fleet's list, some time after it changed."""

    keeper: Any = None

    def __init__(self, dice: Dice, share_rules: ShareRules) -> None:
        self._dice, self._share_rules = dice, share_rules
        self._listing = Listing()
        self._changed = asyncio.Event()
        self._last = 0.0

    def tell(self, listing: Listing) -> None:
        delay = self._dice.random.choice((0.0, 0.05, 0.5))
        self._last = max(self._last, self._dice.loop.time() + delay)
        self._dice.loop.at(self._last, self._set, listing)

    def _set(self, listing: Listing) -> None:
        self._listing = listing
        self._changed.set()

    async def listings(self) -> AsyncIterator[Listing]:
        while True:
            await self._changed.wait()
            self._changed.clear()
            with self._share_rules.taking(self._listing):
                yield self._listing


class Odd:
    """An operator's policy that may do anything."""

    def __init__(self, source: Random) -> None:
        self._source = source
        self._last: Any = None

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        kind, chosen = self._source.randrange(4), self._last
        if kind == 0:
            raise RuntimeError(prompt.tenant)
        if kind > 1:
            chosen = self._last = [*candidates.by_load()][-1]
        return chosen  # type: ignore[no-any-return]


def _told_nobody(_: Failure, reason: str) -> None:
    """The shell logs and counts it."""


class RouterProcess:
    """One life of one router."""

    def __init__(
        self,
        dice: Dice,
        network: Network,
        name: str,
        bounds: Bounds,
        begun: dict[tuple[str, int], float],
        *,
        policy: str | None,
        division: Division,
    ) -> None:
        source, loop = dice.random, dice.loop
        self.dice = dice
        self.network = network
        self.name = name
        self.process = Process(name)
        own: PolicyFactory = partial(LeastLoaded, source.randrange)
        guarded = partial(GuardedPolicy, partial(Odd, source), _told_nobody, math.inf, own)
        made = {"round_robin": RoundRobin, "least_loaded": own, "odd": guarded}
        prefix = partial(Prefix, source.randrange)
        decode = source.choice([made.get(policy, own)] if policy else list(made.values()))
        made["prefix"] = prefix
        prefill = source.choice([made[policy]] if policy else list(made.values()))
        prefix_bytes = source.choice((DEFAULT_BYTES, DEFAULT_BYTES, 12 * BYTES_A_BLOCK, 0))
        self.core = RouterCore(
            bounds=bounds,
            prefill_policy=prefill,
            decode_policy=decode,
            prefix_bytes=prefix_bytes,
            new_room=lambda: source.getrandbits(62) | 1,
            canary_task=lambda profile: translate.canary_task(
                profile, f"{source.getrandbits(128):032x}"
            ),
        )
        self.rules = RouterRules(
            bounds, lambda text, excuse: dice.fault(f"{name}: {text}", excuse), begun
        )
        self.rules.releases = prefill is prefix
        self.rules.forgets = prefix_bytes < DEFAULT_BYTES
        self.core.handle = self._watched(self.core.handle)  # type: ignore[method-assign]
        vouchers = Vouchers(halves.KEY, loop.time)
        self.relay = Relay(
            self.core, clock=loop.time, vouchers=vouchers, chunk_room=dice.chunk_room()
        )
        self.garbler = Garbler(dice)
        self.conduct_rules = ConductRules(
            now=loop.time,
            eject_seconds=bounds.eject_seconds,
            faults=self._faults,
            elsewhere=self.rules.books.elsewhere,
            fault=lambda text: dice.fault(f"{name}: {text}"),
        )
        self.wire = WireRules(lambda text: dice.fault(f"{name}: {text}"))
        self._watch_relay()
        self.share_rules = ShareRules(division, name, lambda text: dice.fault(f"{name}: {text}"))
        self.discovery = ScriptedDiscovery(dice, self.share_rules)
        config = RouterConfig(
            prefill=("x:1",), decode=("y:1",), allow_reports=True, allow_external_scores=True
        )
        self.workers = Workers(
            self.discovery,
            self.relay,
            share=division.share(name),
            silence_seconds=5.0,
        )
        self.servicer = RouterServicer(config, self.relay, self.workers)
        self._idle_since: float | None = None
        """Since when it drains with nothing open."""
        self.stopped = False
        """It takes nothing new any longer, or is dead."""
        self._looked = loop.time()
        """When its core was last told of the time."""
        self.on_unlisted: Callable[[], None] = lambda: None

    def _watched(self, handle: Callable[[float, Iterable[Event]], list[Action]]) -> Any:
        """The core's `handle`, whose every event is judged with the actions that it led to."""

        def watched(now: float, batch: Iterable[Event]) -> list[Action]:
            taken: list[tuple[Event | None, int]] = [(None, 0)]

            def feed() -> Iterator[Event]:
                for event in batch:
                    taken.append((event, len(self.core.state.actions)))
                    yield event

            wakes_at, looks_by = self.core.wakes_at, self._looked + TICK_SECONDS
            done = handle(now, feed())
            if self.process.dead:
                return done
            self._looked = now
            if now > max(wakes_at, looks_by, self.process.resumed) + _LATE_SECONDS:
                self.dice.fault(f"{self.name} looked at the time at {now}, and not at {wakes_at}")
            self._note_idle(now)
            ends = [begin for _, begin in taken[1:]] + [len(done)]
            for action in done:
                self.wire.acted(action)
                if isinstance(action, StartLeg):
                    self.share_rules.started(action.worker)
                elif isinstance(action, RequestEnded):
                    self.share_rules.ended(action.story)
                if isinstance(action, StartLeg) and not action.command.canary:
                    submit = self.core.state.legs[action.leg].sequence.request.submit
                    link = self.relay._frontends.get(action.command.destination)
                    waiting = [each for _, each in getattr(link, "_payloads", ())]
                    self.garbler.started(action, submit.trace_id, waiting)
            for (event, begin), end in zip(taken, ends, strict=True):
                if end > begin and now < wakes_at and isinstance(event, Tick | None):
                    self.dice.fault(f"{self.name}: {done[begin:end]} before {wakes_at}")
                self._trace(event, done[begin:end])
                self.rules.observe(now, event, done[begin:end])
            if done or not isinstance(taken[-1][0], Tick | WorkerLoad):
                check(self.core.state)
                self.rules.compare_loads(self.core.state.fleet.workers)
            return done

        return watched

    def _note_idle(self, now: float) -> None:
        if not (self.core.draining and self.core.idle):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _faults(self, address: str) -> int:
        """What could not be read of a worker, as the core counts."""
        return self.core.state.fleet.trusts[address].faults

    def _watch_relay(self) -> None:
        """Note what the relay is given to pass on."""
        relay = self.relay
        frame, frontend_up, frontend_down = relay.frame, relay.frontend_up, relay.frontend_down
        worker_up, worker_down, drain = relay.worker_up, relay.worker_down, relay.drain
        complaint = relay.complaint

        def watched_frame(address: str, message: worker_pb2.WorkerFrame) -> None:
            link = relay._workers[address]
            if link.given_up is not None:
                self.dice.fault(f"{self.name}: {address} is at fault and goes on")
            known = self.dice.quirks.get(address) == "garbles"
            share = self.dice.garbles if known else self.dice.garbled
            for envelope in message.envelopes:
                if envelope.destination in self.wire.frontends and self.dice.odds(share):
                    self.garbler.garble(address, envelope)
                waiting = getattr(relay._frontends.get(envelope.destination), "_payloads", ())
                payloads = [each for worker, each in waiting if worker == link.number]
                self.garbler.joined(address, envelope.destination, [*payloads, envelope.payload])
            self._add_strange_event(address, message)
            self.wire.frame(message)
            doubtful = [
                Doubtful(each.destination, each.payload, self.garbler.is_doubtful(address, each))
                for each in message.envelopes
                if each.destination in relay._frontends
            ]
            self.conduct_rules.judge(address, link, doubtful, partial(frame, address, message))

        def watched_complaint(worker: int, fault: str) -> None:
            if link := relay._numbered.get(worker):
                self.conduct_rules.complained(link)
            complaint(worker, fault)

        def watched_frontend_up(sink: Sink) -> int:
            number = frontend_up(sink)
            flow = self.wire.frontends[number] = FrontendFlow(CALL.get())
            flow.fleet, flow.draining = True, self.core.draining
            self.wire.unsettled = True
            return number

        def watched_frontend_down(number: int) -> None:
            self.wire.frontends.pop(number, None)
            frontend_down(number)

        def watched_worker_up(address: str, link: WorkerLink, **options: Any) -> None:
            self.wire.workers[address] = WorkerFlow()
            self._fail_some(address, link)
            self.conduct_rules.worker_up(address, link)
            worker_up(address, link, **options)

        def watched_worker_down(address: str, reason: str, *, died: bool) -> None:
            legs = [leg for leg in self.rules.books.legs.values() if leg.worker.key == address]
            self.share_rules.left(address, reason, sum(not leg.overdue for leg in legs))
            self.wire.workers.pop(address, None)
            self.wire.workers[address] = WorkerFlow()
            worker_down(address, reason, died=died)
            self.wire.workers.pop(address, None)

        def watched_drain() -> None:
            for flow in self.wire.frontends.values():
                flow.draining = self.wire.unsettled = True
            drain()

        relay.frame = watched_frame  # type: ignore[method-assign]
        relay.complaint = watched_complaint  # type: ignore[method-assign]
        relay.frontend_up = watched_frontend_up  # type: ignore[method-assign]
        relay.frontend_down = watched_frontend_down  # type: ignore[method-assign]
        relay.worker_up = watched_worker_up  # type: ignore[method-assign]
        relay.worker_down = watched_worker_down  # type: ignore[method-assign]
        relay.drain = watched_drain  # type: ignore[method-assign]

    def _add_strange_event(self, address: str, message: worker_pb2.WorkerFrame) -> None:
        """Some workers speak of legs that are not theirs."""
        others = [leg for leg in self.rules.books.legs.values() if leg.worker.key != address]
        if others and self.dice.odds(0.01):
            event = message.events.add(leg=self.dice.random.choice(others).number)
            event.closed.outcome = event.closed.OUTCOME_FINISHED

    def _fail_some(self, address: str, link: WorkerLink) -> None:
        """Some commands to a worker cannot be made: a fault of this router's own."""
        start = link.start

        def failing(action: StartLeg) -> None:
            if self.dice.odds(self.dice.failed_starts):
                self.wire.workers[address].starts.remove(action.leg)
                raise ValueError("a start that cannot be")
            start(action)

        link.start = failing  # type: ignore[method-assign]

    def _trace(self, event: Event | None, done: list[Action]) -> None:
        trace = self.dice.trace
        if trace is not None:
            if event is not None:
                trace(f"{self.dice.loop.time():9.4f} {self.name} > {event}")
            for action in done:
                trace(f"{self.dice.loop.time():9.4f} {self.name}    < {action}")

    def start(self) -> None:
        listener = self.network.listen(self.name, self.process)
        self.servicer.add_to(listener)
        self.network.services.setdefault("router", []).append(self.name)
        spawn = self.dice.loop.spawn
        spawn(self.process, self.relay.keep_time())
        spawn(self.process, self.workers.run())

    def shut_down(self, seconds: float) -> None:
        """Drain as a router does when it is told to stop; then it is gone."""
        self.stopped = True
        self.dice.later(self.dice.random.random(), self._unlist)
        self.dice.loop.spawn(self.process, self._drain(seconds))

    @property
    def listed(self) -> bool:
        """Whether frontends, and other routers, find it."""
        return self.name in self.network.services.get("router", ())

    def _unlist(self) -> None:
        if self.listed:
            self.network.services["router"].remove(self.name)
        self.on_unlisted()

    async def _drain(self, seconds: float) -> None:
        server: Any = None
        running = RunningRouter(self.relay, server, DrainMetrics("router"), self.workers)
        await running.drain(seconds)
        if self._idle_since is not None and self.dice.loop.time() > self._idle_since + MOST_PAUSE:
            self.dice.fault(f"{self.name} drains on, and nothing is open")
        await asyncio.sleep(1.0)  # as the server's own stop, which lets streams end
        self.die()

    def die(self) -> None:
        """At once; every stream breaks."""
        self.stopped = True
        self._unlist()
        self.process.dead = True
        self.network.listeners.pop(self.name, None)
        for call in self.network.of(self.process):
            call.break_off()
