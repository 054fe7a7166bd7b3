"""One process that serves both phases: two workers, each with its phase's own rules, hooks and
request ids, and one engine behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from prometheus_client import CollectorRegistry

import tandem_decode_worker.rules
import tandem_prefill_worker.rules
from tandem import metrics, sockets
from tandem.byte_budget import ByteBudget
from tandem.certificates import ExpiryCollector
from tandem.engine import factory
from tandem.engine.faces import TwoFacedEngine
from tandem.errors import ConfigError, EngineError
from tandem.hooks.contract import Phase
from tandem.tracing.metrics import SpanCollector
from tandem.tracing.spans import Tracer
from tandem.wire import tls
from tandem.wire.prompt_chunks import ChunkMetrics
from tandem.wire.tls import PeerTls
from tandem.worker.config import WorkerConfig, WorkerKind
from tandem.worker.description import new_instance
from tandem.worker.endpoint import Endpoint, Shared, new_ledger
from tandem.worker.phase import LoadPhase
from tandem.worker.server import MakeEngine, WorkerServer, check_phase
from tandem.worker.servicer import PhasesServicer, WorkerServicer
from tandem_aggregated_worker.metrics import Merged

log = logging.getLogger(__name__)

KIND: WorkerKind = "worker"
PHASES: tuple[Phase, ...] = get_args(Phase)
_LOAD: Mapping[Phase, LoadPhase] = {
    "prefill": tandem_prefill_worker.rules.load_phase,
    "decode": tandem_decode_worker.rules.load_phase,
}
_LAST_WORDS_SECONDS = 1.0
"""For the other phase to see that the engine has died, too."""


class AggregatedWorker:
    """A process of both phases. `start`, `serve` and `close` are its lifecycle, as a Worker's."""

    def __init__(
        self,
        config: WorkerConfig,
        tracer: Tracer | None = None,
        *,
        create: MakeEngine = factory.create,
    ) -> None:
        """Loads all user code, once for each phase. Raises StartError."""
        self._config = config = _as_one(config)
        self._tracer = tracer
        self._budget = ByteBudget(config.max_held_bytes)
        self._endpoint = Endpoint(KIND, config, PeerTls.of(config), self._budget)
        self._instance = new_instance()
        self._chunk_room = config.chunk_room()
        shared = Shared(
            self._endpoint,
            self._budget,
            self._chunk_room,
            new_ledger(config, phases=len(PHASES)),
            self._instance,
            asyncio.Barrier(len(PHASES)),
        )
        engine = TwoFacedEngine(create)
        self._workers = {
            phase: WorkerServer(
                phase, config, _LOAD[phase], tracer, create=engine.face, shared=shared
            )
            for phase in PHASES
        }

    @property
    def port(self) -> int:
        """The port of gRPC, once started."""
        return self._endpoint.port

    @property
    def metrics_port(self) -> int:
        return self._endpoint.metrics_port

    async def start(self, stop: asyncio.Event) -> bool:
        """Whether it serves: not, where `stop` came first. Raises StartError."""
        registry = self._make_registry()
        await self._endpoint.serve_admin(
            registry,
            live=lambda: not self._engine_died,
            started=lambda: self._prepared,
            units=self._workers["decode"].units,
        )
        for worker in self._workers.values():
            if not await worker.prepare(stop):
                return False
        workers = self._workers.values()
        registry.register(Merged(each for worker in workers for each in worker.collectors()))
        phases: dict[str, WorkerServicer] = {
            phase: each.servicer for phase, each in self._workers.items()
        }
        await self._endpoint.listen(PhasesServicer(phases).add_to)
        await self._endpoint.readiness.open()
        address = sockets.bound(self._config.listen, self.port)
        log.info("serving", extra={"worker": self._config.name, "address": address})
        return True

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`, and the drain after it. Raises EngineError as soon as the engine dies."""
        create_task = asyncio.get_running_loop().create_task
        serving = [create_task(each.serve(stop)) for each in self._workers.values()]
        try:
            await asyncio.wait(serving, return_when=asyncio.FIRST_EXCEPTION)
            # What is open in the other phase is to be told why it ends.
            await asyncio.wait(serving, timeout=_LAST_WORDS_SECONDS)
        finally:
            for task in serving:
                task.cancel()
            ended = await asyncio.gather(*serving, return_exceptions=True)
        failures = [each for each in ended if isinstance(each, Exception)]
        if failures:
            raise next((each for each in failures if isinstance(each, EngineError)), failures[0])

    async def close(self) -> None:
        """Send what is left and free everything, in bounded time; also after a failed start."""
        await self._endpoint.shut()
        for worker in self._workers.values():
            worker.flush()
        await self._endpoint.stop()
        for worker in self._workers.values():
            await worker.close()
        await self._endpoint.close()

    @property
    def _engine_died(self) -> bool:
        return any(each.engine_died for each in self._workers.values())

    @property
    def _prepared(self) -> bool:
        return all(each.prepared for each in self._workers.values())

    def _make_registry(self) -> CollectorRegistry:
        """What there is to tell before the engine has started."""
        registry = metrics.new_registry("aggregated_worker")
        for collector in (
            Merged(each.standing for each in self._workers.values()),
            metrics.HeldMetrics("worker", self._budget, phase="decode"),
            ChunkMetrics("worker", self._chunk_room, phase="decode"),
            SpanCollector(self._tracer),
            ExpiryCollector(tls.files(self._config)),
        ):
            registry.register(collector)
        return registry


async def check(config: WorkerConfig) -> None:
    """Raises StartError for what an aggregated worker would refuse of its settings."""
    for phase, load in _LOAD.items():
        check_phase(phase, _as_one(config), load)


def _as_one(config: WorkerConfig) -> WorkerConfig:
    """With one name and one address, whichever phase asks. Raises ConfigError."""
    if config.nodes > 1:
        raise ConfigError("an aggregated worker computes on one node: leave nodes at 1")
    if config.token_processes > 1:
        raise ConfigError("an aggregated worker is one process: leave token_processes at 1")
    return replace(
        config,
        name=config.worker_name(KIND),
        listen=config.address(KIND),
        metrics_listen=config.metrics_address(KIND),
    )
