"""A scripted engine for each phase, and the memory that KV crosses by.

Prefill hands over at its endpoint and waits until decode has fetched; decode waits for its room at
its peer. What either waits for is bounded by BOUND seconds only: longer than the simulation allows
anything to take, so that a wait which only this bound ends is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from simulated.dice import Dice
from simulated.loop import Process
from simulated.prefixes import ScriptedCache, blocks_of
from simulated.script import ANY_TOKENIZER, SEED, SEEDS_BETWEEN_RUNS, Request, canary
from tandem.engine.base import Delta, Ending, EngineDescription, EngineRequest, KvTransfer, Role
from tandem.errors import (
    DrainingError,
    EngineError,
    KvTransferError,
    ParkingFullError,
    QueueFullError,
    TandemError,
    VoucherError,
)
from tandem.v1 import worker_pb2

BOUND = 400.0
FULL = 0.1
"""The share of requests whose KV an engine has no room to park."""
FAIL_SECONDS = 0.002
"""What an engine takes that fails everything: faster than any that does its work."""
KV = KvTransfer(4096, 0.001, "sim/virtual")


ENGINE_REFUSES = "the engine takes nothing"
_REFUSALS: dict[str, type[TandemError]] = {
    "refuse": EngineError,
    "drain": DrainingError,
    "full": QueueFullError,
}


@dataclass(slots=True)
class Handover:
    """KV that prefill holds out."""

    owner: Sequence
    identity: tuple[int, int, int, int]
    lease: asyncio.TimerHandle | None = None
    """When it is let go of, where it is parked for a request to come."""


class Fabric:
    """What decode engines find at prefill engines: by endpoint and room."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, int], Handover] = {}
        self.rooms: set[int] = set()
        """Every room that was ever used by a prefill leg."""
        self.asked: dict[tuple[str, int], Sequence] = {}


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in one engine."""

    request: EngineRequest
    script: Request
    prompt: int
    output: int
    run: int
    engine: ScriptedEngine
    next: int = 0
    cancelled: bool = False
    over: bool = False
    fetched: bool = False
    """Prefill: decode has its KV. Decode: it has prefill's."""
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def identity(self) -> tuple[int, int, int, int]:
        return self.script.number, self.prompt, self.output, self.run


class ScriptedEngine:
    """Implements tandem.engine.base.Engine over the scripts of the requests."""

    engine_cpu_seconds = 0.0
    logits_states = 0
    open_handovers = 0

    def __init__(
        self,
        dice: Dice,
        process: Process,
        role: Role,
        *,
        endpoint: str,
        tokenizer: int,
        make: str,
        fabric: Fabric,
        requests: dict[int, Request],
        fails: bool = False,
    ) -> None:
        """`fails`: all that it is given, at once, as long as faults last."""
        self._dice = dice
        self._fails = fails
        self._fails_canaries = fails and dice.random.random() < 0.5
        self._process = process
        self._random = dice.random
        self._role = role
        self.endpoint, self.make = endpoint, make
        self._tokenizers = tokenizer, ANY_TOKENIZER
        self._fabric = fabric
        self._requests = requests
        self.open: dict[int, Sequence] = {}
        self.parked: dict[int, Handover] = {}
        """KV that waits for requests to come, by the request that left it."""
        self._steps: list[list[Delta]] = []
        self._more = asyncio.Event()
        self._due: list[Sequence] = []
        self._stepping: asyncio.TimerHandle | None = None
        self._dead: EngineError | None = None
        self.cache = ScriptedCache(endpoint)
        self.stuck_since: float | None = None
        """Since when nothing comes of it any more, whatever it is asked."""
        self.moved_kv = False
        self._kv_tokens = dice.random.choice((0, 50, 200))
        """What it says that it can hold; 0: it does not say."""
        self._missed: list[Callable[[], None]] = []
        """What was due since."""
        self.cancels: dict[int, float] = {}
        self.on_poison: Callable[[Request], None] = lambda script: None
        """Called where a request ends its worker, or the engine alone."""

    async def start(self) -> EngineDescription:
        raise NotImplementedError

    async def close(self) -> None:
        for sequence in list(self.open.values()):
            self._forget(sequence)

    def load(self) -> worker_pb2.Load:
        """Its steps take no time, so that it is never behind unless it is stuck."""
        since, now = self.stuck_since, self._dice.loop.time()
        used = sum(len(each.request.token_ids) + each.next for each in self.open.values())
        return worker_pb2.Load(
            step_age_ms=0 if since is None else round((now - since) * 1000),
            kv_tokens_used=used,
            kv_tokens_total=self._kv_tokens,
        )

    def get_stuck(self) -> None:
        if self.stuck_since is None:
            self.stuck_since = self._dice.loop.time()

    def go_on(self) -> None:
        """What was due meanwhile happens now."""
        if self.stuck_since is None or self._dead is not None:
            return
        self.stuck_since = None
        missed, self._missed = self._missed, []
        for call in missed:
            call()
        self._step_soon()

    async def hand_on(self, take: Callable[[list[Delta]], object]) -> None:
        while True:
            while self._steps:
                take(self._steps.pop(0))
            if self._dead is not None:
                raise self._dead
            self._more.clear()
            await self._more.wait()

    def _poisoned(self, sequence: Sequence) -> None:
        sequence.script.killed += 1
        self.on_poison(sequence.script)

    def die(self) -> None:
        """As an engine process that crashes: nothing more comes of what is open."""
        for sequence in list(self.open.values()):
            self._forget(sequence)
        for request_id in list(self.parked):
            self._unpark(request_id)
        self._dead = EngineError("the engine died")
        self._more.set()

    # --- requests ---

    def submit(self, request: EngineRequest) -> None:
        sequence = self._sequence(request)
        script = sequence.script
        if request.park_seconds and self._dice.odds(FULL):
            raise ParkingFullError("it parks no more")
        self.open[request.request_id] = sequence
        if script.poison and script.poisons == self._role.value:
            self._after(0.0, sequence, self._poisoned)
            return
        fails = self._fails_canaries if script.number == request.room else self._fails
        if fails and self._dice.breaks:
            error: TandemError = EngineError("the engine fails everything")
            self._after(FAIL_SECONDS, sequence, self._fail, error, True)
            return
        fault = self._dice.engine_fault(self._role)
        if fault in _REFUSALS:
            del self.open[request.request_id]
            raise _REFUSALS[fault](ENGINE_REFUSES)
        if fault == "cancel":
            self._after(self._think(), sequence, self._end, Ending.CANCELLED)
        elif fault == "fail":
            retryable = self._random.random() < 0.7
            error = EngineError("the engine failed")
            self._after(self._think(), sequence, self._fail, error, retryable)
        elif request.park_seconds:
            self._after(self._think(), sequence, self._park)
        elif self._role is Role.PREFILL:
            self._after(self._think(), sequence, self._hand_over)
        else:
            self._after(self._think(), sequence, self._fetch)
        self._after(BOUND, sequence, self._fail, KvTransferError("nothing came"), True)

    def _sequence(self, request: EngineRequest) -> Sequence:
        if not request.sampling.HasField("seed"):  # as every client's has
            return Sequence(request, canary(request.room), 0, 0, 0, self)
        _, tokenizer, number, prompt = request.token_ids
        number -= 1
        if tokenizer not in self._tokenizers:
            self._dice.fault(f"request {number} is run on {self._tokenizers[0]}, not its tokenizer")
        run, output = divmod(request.sampling.seed - SEED, SEEDS_BETWEEN_RUNS)
        sequence = Sequence(request, self._requests[number], prompt, output, run, self)
        self._go_on(sequence)
        return sequence

    def _go_on(self, sequence: Sequence) -> None:
        """Behind what another engine has made of it."""
        made = list(sequence.request.made)
        sequence.next = len(made)
        script, place = sequence.script, (sequence.prompt, sequence.output, sequence.run)
        if made != [script.token(*place, position) for position in range(len(made))]:
            self._dice.fault(f"{sequence.identity} goes on behind {made}")
        elif len(made) >= script.run(*place).length:
            self._dice.fault(f"{sequence.identity} goes on behind its end")

    def cancel(self, request_id: int) -> None:
        self._unpark(request_id)
        sequence = self.open.get(request_id)
        if sequence is not None and not sequence.cancelled:
            sequence.cancelled = True
            self._after(self._dice.cancel_seconds(), sequence, self._end, Ending.CANCELLED)

    # --- prefill ---

    def _hand_over(self, sequence: Sequence) -> None:
        if sequence.cancelled:
            return
        fabric, key = self._fabric, (self.endpoint, sequence.request.room)
        if sequence.request.room in fabric.rooms:
            self._dice.fault(f"room {sequence.request.room} is used a second time")
        fabric.rooms.add(sequence.request.room)
        self.cache.use(blocks_of(sequence.script.number))
        fabric.held[key] = Handover(sequence, sequence.identity)
        asker = fabric.asked.get(key)
        if asker is not None:
            asker.engine.fetch_soon(asker)

    def _handed_over(self, sequence: Sequence) -> None:
        self._fabric.held.pop((self.endpoint, sequence.request.room), None)
        if self._dice.fails_late():
            self._fail(sequence, EngineError("it broke off after its hand-over"), True)
            return
        place = sequence.prompt, sequence.output, sequence.run
        first = sequence.script.token(*place, sequence.next)
        self._emit(sequence, Delta(0, [first], Ending.LENGTH, kv=KV, cached_tokens=1))

    def _park(self, sequence: Sequence) -> None:
        """Its first token is there, and its KV stays for whoever comes for it in time."""
        if sequence.cancelled:
            return
        self._hand_over(sequence)
        request_id, room = sequence.request.request_id, sequence.request.room
        held = self._fabric.held[self.endpoint, room]
        held.lease = self._later(sequence.request.park_seconds, partial(self._unpark, request_id))
        self.parked[request_id] = held
        first = sequence.script.token(sequence.prompt, sequence.output, sequence.run, 0)
        self._emit(sequence, Delta(0, [first], Ending.LENGTH, kv=KV, cached_tokens=1))
        self._fabric.held[self.endpoint, room] = held

    def _unpark(self, request_id: int) -> None:
        if (held := self.parked.pop(request_id, None)) is not None:
            assert held.lease is not None
            held.lease.cancel()
            self._fabric.held.pop((self.endpoint, held.owner.request.room), None)

    # --- decode ---

    def fetch_soon(self, sequence: Sequence) -> None:
        self._after(self._think() / 4, sequence, self._fetch)

    def _fetch(self, sequence: Sequence) -> None:
        if sequence.cancelled or sequence.fetched:
            return
        key = sequence.request.kv_peer, sequence.request.room
        found = self._fabric.held.get(key)
        if sequence.request.parked and (found is None or found.lease is None):
            self._fail(sequence, VoucherError("it is not parked"), False)
            return
        if found is None:
            self._fabric.asked[key] = sequence
            return
        if found.identity != sequence.identity:
            self._dice.fault(f"{sequence.identity} found the KV of {found.identity}")
        if found.owner.engine.make != self.make:
            self._dice.fault(f"KV of {found.owner.engine.make} is read as {self.make}")
        self._fabric.asked.pop(key, None)
        prefill = found.owner.engine
        if len(found.owner.request.made) != sequence.next:
            self._dice.fault(f"{sequence.identity} and its prefill go on from other places")
        found.owner.fetched = sequence.fetched = self.moved_kv = prefill.moved_kv = True
        if found.lease is not None:
            if not sequence.request.parked:
                self._dice.fault(f"{sequence.identity} takes KV that is parked for another request")
            prefill._unpark(found.owner.request.request_id)
        else:
            prefill._after(self._dice.settle_seconds(), found.owner, prefill._handed_over)
        self._due.append(sequence)
        self._step_soon()

    def _step_soon(self) -> None:
        if self._stepping is None and self._due:
            self._stepping = self._later(self._dice.step_seconds(), self._step)

    def _step(self) -> None:
        """One step of all that run: mostly a token each."""
        self._stepping = None
        if self.stuck_since is not None:
            return
        step = []
        running, self._due = self._due, []
        for sequence in running:
            if sequence.over:
                continue
            if self._dice.engine_breaks_off(sequence.next):
                step.append(
                    self._failed(sequence, EngineError("it broke off"), self._random.random() < 0.5)
                )
                continue
            delta = self._tokens(sequence, self._dice.tokens_a_step())
            step.append(delta)
            if delta.end is None:
                self._due.append(sequence)
            else:
                self._forget(sequence)
        if step:
            self._put(step)
        self._step_soon()

    def _tokens(self, sequence: Sequence, count: int) -> Delta:
        run = sequence.script.run(sequence.prompt, sequence.output, sequence.run)
        first = sequence.next == len(sequence.request.made)
        upto = min(run.length, sequence.next + count)
        numbers = [
            sequence.script.token(sequence.prompt, sequence.output, sequence.run, position)
            for position in range(sequence.next, upto)
        ]
        sequence.next = upto
        end = None
        if upto == run.length:
            end = Ending.STOP if run.eos else Ending.LENGTH
        return Delta(
            sequence.request.request_id,
            numbers,
            end,
            kv=KV if first else None,
            cached_tokens=1 if first else 0,
        )

    # --- ends ---

    def _fail(self, sequence: Sequence, error: TandemError, retryable: bool) -> None:
        self._put([self._failed(sequence, error, retryable)])

    def _failed(self, sequence: Sequence, error: TandemError, retryable: bool) -> Delta:
        self._forget(sequence)
        number = sequence.request.request_id
        return Delta(number, [], Ending.FAILED, error=error, retryable=retryable)

    def _end(self, sequence: Sequence, ending: Ending) -> None:
        self._emit(sequence, Delta(0, [], ending))

    def _emit(self, sequence: Sequence, delta: Delta) -> None:
        delta.request_id = sequence.request.request_id
        self._forget(sequence)
        self._put([delta])

    def _forget(self, sequence: Sequence) -> None:
        sequence.over = True
        self.open.pop(sequence.request.request_id, None)
        for timer in sequence.timers:
            timer.cancel()
        sequence.timers.clear()
        room = sequence.request.room
        if self._role is Role.PREFILL:
            self._fabric.held.pop((self.endpoint, room), None)
        else:
            self._fabric.asked.pop((sequence.request.kv_peer, room), None)

    def _put(self, step: list[Delta]) -> None:
        """Steps that come close together are one."""
        if self._steps and self._random.random() < 0.5:
            self._steps[-1] += step
        else:
            self._steps.append(step)
        self._more.set()

    def _think(self) -> float:
        return self._dice.think_seconds(self._role)

    def _after(self, seconds: float, sequence: Sequence, call: object, *args: object) -> None:
        def due() -> None:
            if self.stuck_since is not None:
                self._missed.append(due)
            elif not sequence.over:
                call(sequence, *args)  # type: ignore[operator]

        sequence.timers.append(self._later(seconds, due))

    def _later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._dice.loop.call_later(seconds, call, context=self._process.context)
