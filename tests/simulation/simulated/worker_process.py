"""A worker: the real code of its phase over a scripted engine, with hooks that follow scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from router.core.values import Phase
from simulated.dice import Dice
from simulated.engine import Fabric, ScriptedEngine, describe
from simulated.hooks import ScriptedHooks
from simulated.loop import Process
from simulated.network import Network
from simulated.script import Judged, Request
from simulated.words import Words
from tandem.engine.base import Role
from tandem.errors import EngineError
from tandem.metrics import Drain
from tandem.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tandem.worker.drain import drain
from tandem.worker.intake import Intake
from tandem.worker.judges import Judges
from tandem.worker.legs import Legs
from tandem.worker.phases import DecodeRules, PrefillRules
from tandem.worker.pipeline import Pipeline
from tandem.worker.servicer import WorkerServicer
from tandem.worker.tally import WorkerTally

PHASES = {Phase.PREFILL: common_pb2.PHASE_PREFILL, Phase.DECODE: common_pb2.PHASE_DECODE}


@dataclass(slots=True, frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker is; it may live several times."""

    address: str
    phase: Phase
    model: str
    revision: str
    slots: int
    judged: Judged


class WorkerProcess:
    """One life of one worker."""

    def __init__(
        self,
        dice: Dice,
        network: Network,
        spec: WorkerSpec,
        life: int,
        fabric: Fabric,
        requests: dict[int, Request],
    ) -> None:
        self.dice, self.network, self.spec = dice, network, spec
        self.name = f"{spec.address}#{life}"
        self.process = Process(self.name)
        prefill = spec.phase is Phase.PREFILL
        role = Role.PREFILL if prefill else Role.DECODE
        self.endpoint = f"kv of {self.name}" if prefill else ""
        self.engine = ScriptedEngine(
            dice,
            self.process,
            role,
            endpoint=self.endpoint,
            fabric=fabric,
            requests=requests,
        )
        self.hooks: ScriptedHooks | None = None
        judged = spec.judged
        if judged.prefill_hook if prefill else judged.hook:
            self.hooks = ScriptedHooks(
                dice, self.process, spec.phase.value, requests, late=judged.late
            )
        self.described = describe(spec.model, spec.revision, spec.slots, self.endpoint)
        judges = Judges(self.hooks)
        words: Any = Words()
        self.legs = Legs(
            phase=PHASES[spec.phase],
            worker=self.name,
            intake=Intake(
                role=role,
                model=spec.model,
                limits=self.described.limits,
                tokenizer=words,
                reads_text=self.hooks is not None,
                forced=(),
            ),
            engine=self.engine,
            max_legs=spec.slots,
            tally=WorkerTally(),
            judges=judges,
            clock=dice.loop.time,
        )
        self.pipeline = Pipeline(
            self.legs,
            rules=PrefillRules() if prefill else DecodeRules(),
            judges=judges,
            tally=WorkerTally(),
        )
        self.servicer = WorkerServicer(
            legs=self.legs, load=self._load, describe=self._describe, on_paired=self._paired
        )
        self.draining = False

    def start(self) -> None:
        listener = self.network.listen(self.spec.address, self.process)
        worker_pb2_grpc.add_WorkerServicer_to_server(self.servicer, listener)
        self.dice.loop.spawn(self.process, self._serve())

    async def _serve(self) -> None:
        if self.hooks is not None:
            await self.hooks.start(self.pipeline.on_rulings)
        loop = asyncio.get_running_loop()
        ticking = loop.create_task(self._tick())
        try:
            async for step in self.engine.steps():
                self.pipeline.on_step(step)
        except EngineError as error:
            self.legs.fail_all(error, settled=True)
            self.servicer.close()
            await asyncio.sleep(0.2)
            self.die()
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.legs.sweep()
            self.servicer.report_load()

    def shut_down(self, seconds: float, then: Callable[[], None]) -> None:
        self.draining = True
        self.dice.loop.spawn(self.process, self._drain(seconds, then))

    async def _drain(self, seconds: float, then: Callable[[], None]) -> None:
        self.legs.draining = True
        self.servicer.report_load()
        never: Any = asyncio.get_running_loop().create_future()
        await drain(self.legs, never, seconds=seconds, measured=Drain("worker"))
        self.servicer.close()
        await asyncio.sleep(2.0)
        then()
        self.die()

    def die(self) -> None:
        """At once; every stream breaks, and what the engine holds is gone."""
        self.process.dead = True
        self.engine.die()
        if self.network.listeners.get(self.spec.address, None) is not None:
            listener = self.network.listeners[self.spec.address]
            if listener.process is self.process:
                del self.network.listeners[self.spec.address]
        for call in self.network.of(self.process):
            call.break_off()

    def _load(self) -> worker_pb2.Load:
        return worker_pb2.Load(open_legs=len(self.legs), draining=self.legs.draining)

    def _describe(self) -> worker_pb2.WorkerDescription:
        description = worker_pb2.WorkerDescription(
            name=self.name,
            phase=PHASES[self.spec.phase],
            fingerprint=self.described.fingerprint,
            kv_endpoint=self.endpoint,
            limits=self.described.limits,
            has_hook=self.hooks is not None,
            propagate_terminate=self.spec.judged.propagate,
        )
        description.load.CopyFrom(self._load())
        return description

    async def _paired(self) -> None:
        pass
