"""Where a worker's process is reached: gRPC for routers, an admin port for probes and scrapes, and
whether it takes work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from msgspec.json import encode
from prometheus_client import CollectorRegistry

from tandem.admin import Admin, Document
from tandem.byte_budget import ByteBudget
from tandem.engine.base import EngineUnit
from tandem.wire.grpc import Server
from tandem.wire.prompt_chunks import ChunkRoom
from tandem.wire.tls import PeerTls
from tandem.worker.config import WorkerConfig, WorkerKind
from tandem.worker.core.ledger import Ledger
from tandem.worker.readiness import Readiness

FLUSH_SECONDS = 2.0
"""For last frames to leave."""


def new_ledger(config: WorkerConfig, *, phases: int = 1) -> Ledger:
    """One process's, of the worker's time. `phases`: how many the process serves."""
    portion = 1 / config.token_processes
    return Ledger(accounts=config.key_series, phases=phases, portion=portion)


class Endpoint:
    """A process's two ports. `listen`, `serve_admin`, `shut` and `close` are their lifecycle."""

    def __init__(
        self, kind: WorkerKind, config: WorkerConfig, tls: PeerTls | None, budget: ByteBudget
    ) -> None:
        """`budget`: what routers sent and nobody has read takes of it."""
        self._kind: WorkerKind = kind
        self._config = config
        self._server = Server(
            tls,
            caller="router",
            reflects=config.grpc_reflection,
            limits=config.connection_limits,
            budget=budget,
        )
        self.readiness = Readiness(self._server, needs_pair=config.ready_when_paired)
        self._admin = AsyncExitStack()
        self._listening = False
        self.port = 0
        """The port of gRPC, once it listens."""
        self.metrics_port = 0

    async def listen(self, register: Callable[[Any], None]) -> None:
        """Serve to routers what `register` adds. Raises StartError where the address is taken."""
        self._server.add(register, "tandem.v1.Worker")
        self.port = await self._server.start(self._config.address(self._kind))
        self._listening = True

    async def serve_admin(
        self,
        registry: CollectorRegistry,
        *,
        live: Callable[[], bool],
        started: Callable[[], bool],
        units: Callable[[], Sequence[EngineUnit]],
    ) -> None:
        """Before the engine is started: a load is watched too. `units`: those of the engine, for
        the page /debug/units. Raises ConfigError where the address cannot be had.
        """
        admin = Admin(
            registry,
            ready=lambda: self.readiness.ready,
            live=live,
            started=started,
            documents={"/debug/units": lambda _: Document(HTTPStatus.OK, encode(units()))},
        )
        self.metrics_port = await self._admin.enter_async_context(
            admin.serving(self._config.metrics_address(self._kind))
        )

    async def shut(self) -> None:
        """Take no more work."""
        if self._listening:
            await self.readiness.shut()

    async def stop(self) -> None:
        """Let last frames leave, and end every stream."""
        if self._listening:
            await self._server.stop(FLUSH_SECONDS)

    async def close(self) -> None:
        """Answer no probe any more."""
        await self._admin.aclose()


@dataclass(frozen=True)
class Shared:
    """What the workers of one process have in common that serve a phase each, of one engine."""

    endpoint: Endpoint
    budget: ByteBudget
    chunk_room: ChunkRoom
    ledger: Ledger
    instance: str
    """Unique for each start of the process."""
    drained: asyncio.Barrier
    """Where they wait for each other, each with nothing open any more."""
