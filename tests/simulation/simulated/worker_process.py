"""A worker: the real code of its phase over a scripted engine, with hooks that follow scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from simulated.classifiers import build_classifiers
from simulated.dice import MOST_PAUSE, Dice
from simulated.engine import Fabric, ScriptedEngine
from simulated.hooks import ScriptedHooks
from simulated.loop import Process
from simulated.network import CALL, Call, Network
from simulated.script import FIRST_TOKENIZER, Judged, Request, tokenizer_hash
from simulated.words import Words
from simulated.worker_rules import WorkerRules
from tandem.byte_budget import ByteBudget
from tandem.endings import Outcome
from tandem.engine.base import EngineDescription, EngineFigures, Role
from tandem.errors import EngineError
from tandem.metrics import DrainMetrics
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.classifying import Classifying
from tandem.worker.core.leg import Closing, Leg
from tandem.worker.core.machine import WorkerCore
from tandem.worker.core.output import Finish
from tandem.worker.core.rules import PhaseRules
from tandem.worker.counters import WorkerCounters
from tandem.worker.drain import drain
from tandem.worker.intake import Intake
from tandem.worker.link import RouterLink
from tandem.worker.records import Records
from tandem.worker.servicer import WorkerServicer
from tandem.worker.shell import Shell
from tandem_decode_worker.rules import DecodeRules
from tandem_prefill_worker.rules import PrefillRules
from tandem_router.core.values import Phase

EARLY_REPORTS = 10.0
"""A second; each leg is reason for one where there are so few slots."""
PHASES = {Phase.PREFILL: common_pb2.PHASE_PREFILL, Phase.DECODE: common_pb2.PHASE_DECODE}


Quirk = Literal["", "forgetful", "hasty", "newer", "layout", "full", "garbles", "fails"]
"""Of a worker of another make: it keeps its verdicts to itself; it holds nothing back; its
fingerprint has a field that routers do not know yet, or another layout; it takes no sequences; most
of its output cannot be read; its engine fails all that it is given at once.
"""


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker is; it may live several times."""

    address: str
    phase: Phase
    model: str
    revision: str
    slots: int
    judged: Judged
    quirk: Quirk = ""
    tokenizer: int = FIRST_TOKENIZER
    listed_as: Phase | None = None
    """None: as what it is."""
    context: int = 4096
    lease_seconds: float = 0.0
    """For so long prefill parks KV; 0: it parks none."""
    whole: str = ""
    """The address of an aggregated worker, of which this is one phase. Empty: it has no other."""

    @property
    def park_seconds(self) -> float:
        """For so long it parks KV; 0: it parks none, as both phases of one process."""
        return self.lease_seconds if self.phase is Phase.PREFILL and not self.whole else 0.0


def describe(spec: WorkerSpec, endpoint: str) -> EngineDescription:
    """What a started engine would say of itself."""
    fingerprint = common_pb2.Fingerprint(
        model=spec.model,
        engine="scripted",
        page_size=16,
        kv_layout="another" if spec.quirk == "layout" else "one",
        tokenizer_sha256=tokenizer_hash(spec.model, spec.tokenizer),
        protocol_version=1,
        deployment_revision=spec.revision,
        aggregated=bool(spec.whole),
    )
    if spec.quirk == "newer":
        fingerprint.MergeFromString(b"\xc2\x3e\x03new")  # a text in field 1000
    limits = worker_pb2.Limits(
        max_sequences=0 if spec.quirk == "full" else spec.slots,
        context_length=spec.context,
        vocabulary=2**31 - 1,
    )
    return EngineDescription(fingerprint=fingerprint, limits=limits, kv_endpoint=endpoint)


_MAKES = {"newer": "newer", "layout": "another"}
"""What KV is like: only equals may be paired."""


class ForgetfulRules(PrefillRules):
    """Those of a prefill worker that keeps its verdicts to itself."""

    def verdict(self, leg: Leg, end: Finish) -> None:
        return None

    def closing(self, end: Finish) -> Closing:
        """A terminate is said at the end only."""
        if end.terminated:
            return Closing(Outcome.TERMINATED, reason=end.stop_reason)
        return super().closing(end)


class WorkerProcess:
    """One life of one worker, or of one phase of an aggregated one."""

    def __init__(
        self,
        dice: Dice,
        network: Network,
        spec: WorkerSpec,
        life: int,
        fabric: Fabric,
        requests: dict[int, Request],
        most_held: int,
        *,
        proves: bool = True,
        twin: WorkerProcess | None = None,
    ) -> None:
        """`proves`: routers send canaries. `twin`: the phase that is of the same process."""
        self.proves = proves
        self.dice, self.network, self.spec = dice, network, spec
        self.name = f"{spec.address}#{life}"
        self.instance = f"{spec.whole or spec.address}#{life}"
        self.process = Process(self.instance) if twin is None else twin.process
        self.faces: list[WorkerProcess] = [] if twin is None else twin.faces
        """What serves its phases: itself, and its twin."""
        self.faces.append(self)
        prefill = spec.phase is Phase.PREFILL
        role = Role.PREFILL if prefill else Role.DECODE
        self.endpoint = f"kv of {self.name}" if prefill else ""
        self.engine = ScriptedEngine(
            dice,
            self.process,
            role,
            endpoint=self.endpoint,
            tokenizer=spec.tokenizer,
            make=f"{spec.model} {spec.revision} {_MAKES.get(spec.quirk, 'one')}",
            fabric=fabric,
            requests=requests,
            fails=spec.quirk == "fails",
        )
        self.hooks: ScriptedHooks | None = None
        judged = spec.judged
        if judged.prefill_hook if prefill else judged.hook:
            self.hooks = ScriptedHooks(
                dice, self.process, spec.phase.value, requests, late=judged.late
            )
        self.described = describe(spec, self.endpoint)
        words: Any = Words()
        rules: PhaseRules = ForgetfulRules() if spec.quirk == "forgetful" else PrefillRules()
        self.classifying: Classifying | None = None
        if not prefill:
            classifiers = build_classifiers(dice, judged, requests) if judged.classifier else None
            rules = DecodeRules(classifiers)
            rules.max_held_rows = most_held
            self.classifying = classifiers and Classifying(classifiers, words)
        make_core = partial(
            WorkerCore,
            rules=rules,
            worker=self.name,
            max_legs=spec.slots,
            hooked=self.hooks is not None,
            budget=ByteBudget(),
        )
        self.shell = Shell(
            make_core,
            intake=Intake(
                role=role,
                model=spec.model,
                limits=self.described.limits,
                tokenizer=words,
                reads_text=lambda: self.hooks is not None or self.classifying is not None,
                forced=(),
                park_seconds=spec.park_seconds,
            ),
            engine=self.engine,
            hooks=self.hooks,
            classifiers=self.classifying,
            records=Records(WorkerCounters()),
            prefixes=self.engine.cache.told if prefill else None,
            early_reports=EARLY_REPORTS,
            chunk_room=dice.chunk_room(),
            clock=dice.loop.time,
        )
        self.core = self.shell.core
        if spec.whole:
            self.shell.proved()  # no KV moves in a real one
        self.rules = WorkerRules(
            self.core,
            prefill=prefill,
            forgetful=spec.quirk == "forgetful",
            slots=spec.slots,
            most_held=most_held,
            fault=lambda text: dice.fault(f"{self.name}: {text}"),
        )
        self.core.handle = self._watched(self.core.handle)  # type: ignore[method-assign]
        if spec.quirk == "hasty":
            self.shell.command = self._hasty(self.shell.command)  # type: ignore[method-assign]
        self.links: dict[Call, int] = {}
        self.shell.connect = self._connected(self.shell.connect)  # type: ignore[method-assign]
        self.servicer = WorkerServicer(
            shell=self.shell, describe=self._describe, on_paired=self._paired
        )
        self._unsettled = False
        """Something may wait for a stream."""
        self._idle_since: float | None = None
        """Since when it drains with nothing open."""
        self.draining = self.paired = False

    def _hasty(self, command: Callable[[RouterLink, worker_pb2.WorkerCommand], None]) -> Any:
        def hasty(link: RouterLink, message: worker_pb2.WorkerCommand) -> None:
            for start in message.start:
                start.hold_output = False
            command(link, message)

        return hasty

    def _watched(self, handle: Callable[..., list[partial[None]]]) -> Any:
        def watched(now: float, batch: Iterable[Callable[[], None]]) -> list[partial[None]]:
            batch = list(batch)
            self._unsettled = True
            self.rules.before(now, batch)
            done = handle(now, batch)
            if not self.process.dead:
                self.rules.after(done)
                self._note_idle(now)
            return done

        return watched

    def _note_idle(self, now: float) -> None:
        if not self.core.draining or len(self.core):
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _connected(self, connect: Callable[[str], RouterLink]) -> Any:
        def connected(peer: str) -> RouterLink:
            link = connect(peer)
            self.links[CALL.get()] = link.number
            return link

        return connected

    def start(self) -> None:
        listener = self.network.listen(self.spec.address, self.process)
        self.servicer.add_to(listener)
        self.dice.loop.spawn(self.process, self._serve())

    async def _serve(self) -> None:
        if self.hooks is not None:
            await self.hooks.start(self.shell.on_rulings)
        if self.classifying is not None:
            await self.classifying.start(self.shell.on_judgement)
        loop = asyncio.get_running_loop()
        ticking = loop.create_task(self._tick())
        try:
            await self.engine.hand_on(self.shell.on_step)
        except EngineError as error:
            self.shell.tell(partial(self.core.engine_gone, error))
            self.shell.flush()
            await asyncio.sleep(0.2)
            self.die()
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.shell.tell(self.core.tick)
            self.shell.report_load()

    def shut_down(self, seconds: float) -> None:
        """Drain as a worker does when it is told to stop; then it is gone."""
        drained = asyncio.Barrier(len(self.faces))
        for face in self.faces:
            face.draining = True
            self.dice.loop.spawn(self.process, face._drain(seconds, drained))

    async def _drain(self, seconds: float, drained: asyncio.Barrier) -> None:
        self.shell.tell(self.core.drain)
        self.shell.report_load()
        never: Any = asyncio.get_running_loop().create_future()
        await drain(
            self.shell,
            never,
            seconds=seconds,
            figures=lambda: EngineFigures(parked=len(self.engine.parked)),
            measured=DrainMetrics("worker"),
        )
        longest = MOST_PAUSE + self.spec.lease_seconds
        if self._idle_since is not None and self.dice.loop.time() > self._idle_since + longest:
            self.dice.fault(f"{self.name} drains on, and nothing is open")
        await drained.wait()
        self.shell.flush()
        await asyncio.sleep(2.0)
        self.die()

    def at_rest(self, calls: dict[Call, None]) -> None:
        """Nothing waits for a stream that can be written."""
        if not self._unsettled:
            return
        self._unsettled = False
        for call, number in self.links.items():
            if call not in calls or call.over or number not in self.core._state.links:
                continue
            waits = self.core.outgoing(number)
            if waits.drafts or waits.events:
                self._unsettled = True
                if not call.down.blocked:
                    self.dice.fault(f"{self.name}: something waits for {call.client.name}")

    @property
    def waits_for_hooks(self) -> bool:
        """The engine is done with some leg, and its hooks are not."""
        return any(not leg.engine_holds for leg in self.core.legs)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """As a part of this process."""
        self.dice.loop.call_later(seconds, call, context=self.process.context)

    @property
    def specs(self) -> list[WorkerSpec]:
        """Of all that its process serves."""
        return [face.spec for face in self.faces]

    def get_stuck(self) -> None:
        """Nothing comes of its engine any more, of either phase."""
        for face in self.faces:
            face.engine.get_stuck()

    def go_on(self) -> None:
        """Its engine does."""
        for face in self.faces:
            face.engine.go_on()

    def engine_dies(self) -> None:
        """Of both phases; the process follows."""
        for face in self.faces:
            face.engine.die()

    def die(self) -> None:
        """At once; every stream breaks, and what the engine holds is gone."""
        self.process.dead = True
        self.engine_dies()
        listeners = self.network.listeners
        for address in [face.spec.address for face in self.faces]:
            if address in listeners and listeners[address].process is self.process:
                del listeners[address]
        for call in self.network.of(self.process):
            call.break_off()

    def _describe(self) -> worker_pb2.WorkerDescription:
        description = worker_pb2.WorkerDescription(
            name=self.name,
            instance=self.instance,
            phase=PHASES[self.spec.phase],
            fingerprint=self.described.fingerprint,
            kv_endpoint=self.endpoint,
            limits=self.described.limits,
            has_hook=self.hooks is not None,
            has_classifiers=self.classifying is not None,
            propagate_terminate=self.spec.judged.propagate,
            keeps_tasks=self.spec.quirk != "newer",
            parks=self.spec.park_seconds > 0,
        )
        description.load.CopyFrom(self.shell.load())
        if self.spec.quirk == "newer":
            description.load.ClearField("moved_kv")
        return description

    async def _paired(self) -> None:
        self.paired = True
        proved = self.engine.moved_kv or self.spec.whole
        if self.spec.quirk != "newer" and self.proves and not proved:
            self.dice.fault(f"{self.name} is ready and has moved no KV")
