"""A worker process: start, serve until told to stop, drain, close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from tandem import metrics, process, sockets, tracing
from tandem.admin import from_loop
from tandem.byte_budget import ByteBudget
from tandem.certificates import ExpiryCollector
from tandem.engine import factory
from tandem.engine.base import (
    Engine,
    EngineDescription,
    EngineSettings,
    EngineUnit,
    Role,
    Sharing,
)
from tandem.errors import ConfigError, EngineError
from tandem.hooks.contract import Phase
from tandem.logits.registry import Registry
from tandem.settled import settle
from tandem.text.tokenizer import Tokenizer
from tandem.tracing.metrics import SpanCollector
from tandem.tracing.spans import Tracer
from tandem.v1 import worker_pb2
from tandem.wire import tls
from tandem.wire.prompt_chunks import ChunkMetrics
from tandem.wire.tls import PeerTls
from tandem.worker import startup
from tandem.worker.config import WorkerConfig, WorkerKind
from tandem.worker.core.machine import WorkerCore
from tandem.worker.counters import WorkerCounters
from tandem.worker.description import describe
from tandem.worker.drain import drain
from tandem.worker.endpoint import Endpoint, Shared, new_ledger
from tandem.worker.follower import Follower
from tandem.worker.forms import FormedEngine
from tandem.worker.gateway_metrics import GatewayCollector
from tandem.worker.hanging import Hanging
from tandem.worker.hooks import WorkerHooks
from tandem.worker.intake import Intake
from tandem.worker.metrics import WorkerCollector
from tandem.worker.phase import LoadPhase
from tandem.worker.records import Records
from tandem.worker.servicer import WorkerServicer
from tandem.worker.shell import Shell
from tandem.worker.spans import LegSpans
from tandem.worker.start_metrics import StartCollector

log = logging.getLogger(__name__)
TICK_SECONDS = 1.0
"""How often load is reported and deadlines are looked at."""
NOT_RESUMABLE = "a hook or classifier does not declare that it is resumable"
MakeEngine = Callable[[factory.EngineName, Role, EngineSettings], Engine]
"""As `factory.create`."""


class Serves(Protocol):
    """A worker, or what serves several phases: see Worker."""

    async def start(self, stop: asyncio.Event) -> bool: ...

    async def serve(self, stop: asyncio.Event) -> None: ...

    async def close(self) -> None: ...


class MakeWorker(Protocol):
    """Makes what serves a phase, as Worker does. Raises StartError."""

    def __call__(
        self, phase: Phase, config: WorkerConfig, load: LoadPhase, tracer: Tracer | None, /
    ) -> Serves: ...


def main(
    phase: Phase, load: LoadPhase, argv: list[str] | None = None, *, make: MakeWorker | None = None
) -> int:
    """The whole life of a worker process. `load`: what the phase brings of its own. `make`: makes
    its worker, where that is not simply one.

    Returns its exit status: 1 when the engine died.
    """

    async def serve(config: WorkerConfig, stop: asyncio.Event) -> None:
        if config.node_rank:
            await Follower(phase, config).run(stop)
        else:
            await live(phase, config, stop, partial(make or WorkerServer, phase, config, load))

    async def check(config: WorkerConfig) -> None:
        check_phase(phase, config, load)

    return run(f"{phase}_worker", serve, check, argv)


def run(
    component: str,
    serve: Callable[[WorkerConfig, asyncio.Event], Awaitable[None]],
    check: Callable[[WorkerConfig], Awaitable[None]],
    argv: list[str] | None = None,
) -> int:
    """Likewise, of what serves in its own way."""
    return until_engine_dies(lambda: process.run(component, WorkerConfig, serve, check, argv))


def check_phase(phase: Phase, config: WorkerConfig, load: LoadPhase) -> None:
    """Raises StartError for what a worker of the phase would refuse of its settings on any machine
    that has its engine: user code is imported and built, that of a pool in this process.
    """
    try:
        if config.node_rank:
            Follower(phase, config)
        else:
            WorkerServer(phase, config, load, divided=True)
            WorkerHooks.check(phase, config)
    except factory.NotInstalledError as error:
        WorkerHooks.check(phase, config)
        log.warning(
            "engine_options were not checked: the engine is not installed",
            extra={"reason": str(error)},
        )


def until_engine_dies(run: Callable[[], int]) -> int:
    """The exit status of what runs, which may end with EngineError."""
    try:
        return run()
    except EngineError as error:
        log.critical("the engine died", extra={"code": error.code, "reason": error.message})
        return 1


async def live(
    kind: WorkerKind,
    config: WorkerConfig,
    stop: asyncio.Event,
    make: Callable[[Tracer | None], Serves],
) -> None:
    """From the start of what is made to its end. Raises StartError or EngineError."""
    called = "aggregated" if kind == "worker" else kind
    with tracing.exporting(
        config.otlp_endpoint,
        service=f"tandem-{called}-worker",
        instance=config.worker_name(kind),
    ) as tracer:
        worker = make(tracer)
        try:
            if await worker.start(stop):
                process.own_signals(stop)  # engines put in handlers of their own
                settle()  # or a collection would take most of a second, with SGLang's modules
                await worker.serve(stop)
        finally:
            await worker.close()


class WorkerServer:
    """One worker. `start`, `serve` and `close` are its life."""

    def __init__(
        self,
        phase: Phase,
        config: WorkerConfig,
        load: LoadPhase,
        tracer: Tracer | None = None,
        *,
        registry: Registry | None = None,
        create: MakeEngine | None = None,
        with_admin: bool = True,
        divided: bool = False,
        drained: Callable[[], Awaitable[Any]] | None = None,
        shared: Shared | None = None,
    ) -> None:
        """Loads all user code and the model's tokenizer. Raises StartError. `tracer`: where the
        spans of traced requests go. `registry`, `create`: logits processors, and what makes the
        engine, where they are not simply what the settings say. `with_admin`: it has a port for
        metrics and probes. `divided`: it is one process's part of a worker, of which `config` is
        the whole. `drained`: what it waits for, beside its own drain. `shared`: what it has in
        common with the other phase of its process, which then listens, and closes the endpoint.
        """
        if config.token_processes > 1 and not divided:
            raise ConfigError(
                "only the process of a decode worker may be several: leave the setting"
                " token_processes at 1"
            )
        self._phase: Phase = phase
        self._config = config
        self._tls = PeerTls.of(config)
        self._tracer = tracer
        self._create = create
        self._with_admin = with_admin
        self._registry = registry or startup.load_registry(config)
        self._hooks = WorkerHooks.load(phase, config)
        self._tokenizer = Tokenizer.load(config.model_path)
        self._parts = load(config, self._tokenizer)
        self._counters = WorkerCounters()
        self._shared = shared
        self._budget = shared.budget if shared else ByteBudget(config.held_bytes())
        self._chunk_room = shared.chunk_room if shared else config.chunk_room()
        self._engine = self._make_engine()
        self._kv_events = startup.kv_events_of(phase, config)
        self._drained_too = shared.drained.wait if shared else drained
        self._endpoint = (
            shared.endpoint if shared else Endpoint(phase, config, self._tls, self._budget)
        )
        self._drained = metrics.DrainMetrics("worker", phase=phase)
        self.standing = StartCollector(
            phase,
            model=config.model_name(),
            started=lambda: self.prepared,
            ready=lambda: self._endpoint.readiness.ready,
        )
        self.prepared = False
        """Whether its engine has started."""
        self.engine_died = False
        self.sharing: Sharing | None = None
        """How further processes join its engine, once it was prepared; None: none may."""

    @property
    def port(self) -> int:
        """The port of gRPC, once started."""
        return self._endpoint.port

    @property
    def metrics_port(self) -> int:
        return self._endpoint.metrics_port

    async def start(self, stop: asyncio.Event) -> bool:
        """Whether it serves: not, where `stop` came first. Raises StartError."""
        if self._with_admin:
            await self.serve_admin(self.registry)
        if not await self.prepare(stop):
            return False
        await self.open()
        return True

    async def serve_admin(self, registry: CollectorRegistry) -> None:
        """Answer probes and scrapes, from before the engine loads. Raises ConfigError."""
        await self._endpoint.serve_admin(
            registry,
            live=lambda: not self.engine_died,
            started=lambda: self.prepared,
            units=self.units,
        )

    def units(self) -> Sequence[EngineUnit]:
        """What Tandem adds to the engine, once prepared."""
        return self._engine.figures().units if self.prepared else ()

    async def open(self) -> None:
        """Be reached by routers, once prepared. Raises StartError."""
        for collector in self.collectors():
            self.registry.register(collector)
        await self._endpoint.listen(self.servicer.add_to)
        await self._endpoint.readiness.open()
        address = sockets.bound(self._config.address(self._phase), self.port)
        log.info("serving", extra={"worker": self._description.name, "address": address})

    async def prepare(self, stop: asyncio.Event) -> bool:
        """All of `start` but to be reached."""
        if self._hooks is not None:
            await self._hooks.runs.start(lambda rulings: self._shell.on_rulings(rulings))
        if self._parts.classifiers is not None:
            await self._parts.classifiers.start(
                lambda request_id, judgement: self._shell.on_judgement(request_id, judgement)
            )
        if self._kv_events is not None:
            self._kv_events.open()
        engine = await startup.start_engine(self._engine, name=self._config.engine, stop=stop)
        if engine is None:
            return False
        if self._kv_events is not None:
            self._kv_events.follow(engine.prefixes)
        self.sharing = engine.sharing
        classifiers = self._parts.classifiers
        judges_logprobs = classifiers is not None and classifiers.reads_logprobs
        self._description = describe(
            self._phase,
            self._config,
            engine,
            has_hook=self._hooks is not None,
            # Some to come would miss the log-probability of a first token that was parked.
            has_classifiers=judges_logprobs or (classifiers is not None and classifiers.reads_text),
            may_judge=classifiers is not None,
            judges_logprobs=judges_logprobs,
            registry=self._registry,
            aggregated_as=self._shared.instance if self._shared else "",
        )
        self._make_service(engine)
        return True

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`, and the drain after it. Raises EngineError as soon as the engine dies."""
        async with asyncio.TaskGroup() as tasks:
            engine = tasks.create_task(self._follow_engine())
            ticking = tasks.create_task(self._tick())
            stopped = tasks.create_task(stop.wait())
            await asyncio.wait({engine, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not engine.done():
                await self._drain(engine)
            if self._drained_too is not None and not engine.done():
                # Routers are told of all until the last one is idle.
                others = tasks.create_task(_until(self._drained_too))
                await asyncio.wait({engine, others}, return_when=asyncio.FIRST_COMPLETED)
                others.cancel()
            for task in (engine, ticking, stopped):
                task.cancel()
        await self._endpoint.shut()
        if not engine.cancelled():
            self.engine_died = True
            error = engine.result()
            self._shell.tell(partial(self._shell.core.engine_gone, error))
            raise error

    async def close(self) -> None:
        """Send what is left and free everything, in bounded time; also after a failed start."""
        if self._shared is None:
            await self._endpoint.shut()
            self.flush()
            await self._endpoint.stop()
        await self._engine.close()
        if self._kv_events is not None:
            await self._kv_events.close()
        if self._hooks is not None:
            await self._hooks.runs.close()
        if self._parts.classifiers is not None:
            await self._parts.classifiers.close()
        if self._shared is None:
            await self._endpoint.close()

    def flush(self) -> None:
        """End every stream once what waits on it was sent."""
        if self.prepared:
            self._shell.flush()

    # --- starting --------------------------------------------------------------------------------

    def _make_engine(self) -> FormedEngine:
        startup.keep_transfer_local(self._config.host(self._phase))
        settings = startup.engine_settings(
            self._phase, self._config, self._registry, self._tls, self._budget
        )
        self._workshop = startup.make_workshop(self._config, settings)
        return FormedEngine(
            (self._create or factory.create)(self._config.engine, Role(self._phase), settings),
            self._registry,
            self._workshop,
            lambda step: self._shell.tell(partial(self._shell.core.stepped, step)),
        )

    def _make_service(self, engine: EngineDescription) -> None:
        hooks, classifiers = self._hooks, self._parts.classifiers
        resumable = (hooks is None or hooks.runs.resumable) and (
            classifiers is None or classifiers.resumable
        )
        self._shell = Shell(
            partial(
                WorkerCore,
                rules=self._parts.rules,
                worker=self._description.name,
                max_legs=engine.limits.max_sequences,
                hooked=hooks is not None,
                budget=self._budget,
                ledger=shared.ledger if (shared := self._shared) else new_ledger(self._config),
            ),
            intake=Intake(
                role=Role(self._phase),
                model=self._config.model_name(),
                limits=engine.limits,
                lora_adapters=frozenset(self._config.lora_adapters),
                cannot_resume=engine.cannot_resume,
                obstacle="" if resumable else NOT_RESUMABLE,
                tokenizer=self._tokenizer,
                reads_text=self._reads_text,
                spent=self._counters.took_in,
                forced=startup.forced_entries(
                    self._config, self._registry, self._tokenizer, engine
                ),
                spec_limits=self._config.spec_limits,
                park_seconds=self._config.park_seconds if self._description.parks else 0.0,
                parks=self._parts.parks,
            ),
            engine=self._engine,
            chunk_room=self._chunk_room,
            hooks=None if hooks is None else hooks.runs,
            classifiers=classifiers,
            records=Records(self._counters, self._spans()),
            prefixes=engine.prefixes,
            early_reports=self._config.early_reports_per_second,
        )
        if self._shared is not None:
            self._shell.proved()  # no KV moves
        self.servicer = WorkerServicer(
            shell=self._shell,
            describe=self._describe_now,
            on_paired=self._endpoint.readiness.on_paired,
        )
        self.prepared = True

    def _reads_text(self) -> bool:
        classifiers = self._parts.classifiers
        return self._hooks is not None or (classifiers is not None and classifiers.reads_text)

    # --- serving ---------------------------------------------------------------------------------

    async def _follow_engine(self) -> EngineError:
        """Have every step given to the core. Returns why there are no more."""
        try:
            await self._engine.hand_on(self._shell.on_step)
        except EngineError as error:
            return error
        return EngineError("the engine stopped by itself")

    async def _tick(self) -> None:
        hanging = Hanging(self._description.name)
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._shell.tell(self._shell.core.tick)
            if Role(self._phase) is not Role.AGGREGATED:
                self._shell.look_for_hanging(hanging)
            self._shell.report_load()

    async def _drain(self, engine: asyncio.Task[EngineError]) -> None:
        self._shell.tell(self._shell.core.drain)
        await self._endpoint.shut()
        self._shell.report_load()
        seconds = self._config.drain_seconds
        await drain(
            self._shell,
            engine,
            seconds=seconds,
            figures=self._engine.figures,
            measured=self._drained,
        )

    def _describe_now(self) -> worker_pb2.WorkerDescription:
        description = worker_pb2.WorkerDescription()
        description.CopyFrom(self._description)
        description.load.CopyFrom(self._shell.load())
        return description

    def _spans(self) -> LegSpans | None:
        if self._tracer is None:
            return None
        return LegSpans(self._tracer, phase=self._phase, worker=self._description.name)

    @cached_property
    def registry(self) -> CollectorRegistry:
        """All that this process has to tell; until it is reached, what there is to tell of a
        start.
        """
        registry = metrics.new_registry(f"{self._phase}_worker")
        for collector in (
            self.standing,
            metrics.HeldMetrics("worker", self._budget, phase=self._phase),
            ChunkMetrics("worker", self._chunk_room, phase=self._phase),
            SpanCollector(self._tracer),
            ExpiryCollector(tls.files(self._config)),
        ):
            registry.register(collector)
        return registry

    def collectors(self) -> Iterator[Collector]:
        """Collectors of this phase's metrics, once the phase is prepared."""
        loop = asyncio.get_running_loop()
        yield self._drained
        yield WorkerCollector(
            phase=self._phase,
            counters=self._counters,
            hooks=self._hooks,
            classifiers=self._parts.classifiers,
            forms=self._workshop,
            load=from_loop(loop, self._shell.load),
            figures=from_loop(loop, self._engine.figures),
            taken=from_loop(loop, self._shell.taken),
        )
        if dialect := self._config.gateway_metrics:
            yield GatewayCollector(
                dialect,
                fingerprint=self._description.fingerprint,
                adapters=len(self._config.lora_adapters),
                load=from_loop(loop, self._shell.load),
            )


async def _until(drained: Callable[[], Awaitable[Any]]) -> None:
    await drained()
