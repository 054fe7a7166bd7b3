"""A further process of a worker: a worker whose engine the first process has started.

It listens at an address of its own, and routers know it as any other. It ends with the first, and
when the first tells it so.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import sys
from typing import Any

from prometheus_client import CollectorRegistry

from tandem import process
from tandem.engine import factory
from tandem.engine.base import Engine, EngineSettings, JoinedEngine, Role
from tandem.errors import StartError
from tandem.hooks.contract import Phase
from tandem.pool.boot import Loaded
from tandem.pool.child import connect, read_message, receive
from tandem.pool.frames import frame
from tandem.tracing.spans import Tracer
from tandem.worker import server
from tandem.worker.config import WorkerConfig
from tandem.worker.phase import LoadPhase
from tandem.worker.process_link import Join, Live, Lost, Scrape, Stop

log = logging.getLogger(__name__)


def main() -> int:
    """The whole life of a further process, whose socket leads to the first. Returns the exit
    status.
    """
    stream = connect()
    order = receive(stream)
    if order is None:
        return 1
    sys.path[:], order = pickle.loads(order)
    return run(stream, *pickle.loads(order))


def run(
    stream: socket.socket, number: int, phase: Phase, config: WorkerConfig, load: LoadPhase
) -> int:
    """Serve as the process of that number. `config`: of this one (WorkerConfig.of_process)."""

    async def serve(config: WorkerConfig, stop: asyncio.Event) -> None:
        further = Further(phase, config, load)
        answering = asyncio.get_running_loop().create_task(further.answer(stream, stop))
        try:
            await server.live(phase, config, stop, further.make)
        except StartError as error:
            await further.refuse(str(error), stop)
            raise
        finally:
            answering.cancel()

    def live() -> int:
        return process.run_with(f"{phase}_worker", config, serve, token_process=number)

    return server.until_engine_dies(live)


class Further:
    """The worker of this process, and what the first one asks of it."""

    def __init__(self, phase: Phase, config: WorkerConfig, load: LoadPhase) -> None:
        self._phase: Phase = phase
        self._config = config
        self._load = load
        loop = asyncio.get_running_loop()
        self._ticket: asyncio.Future[bytes] = loop.create_future()
        self._started: asyncio.Future[Loaded] = loop.create_future()
        self._engine: JoinedEngine | None = None
        self._worker: server.WorkerServer | None = None
        self._registry: CollectorRegistry | None = None

    def make(self, tracer: Tracer | None) -> Further:
        """As server.live asks for it. Raises StartError."""
        self._worker = server.WorkerServer(
            self._phase,
            self._config,
            self._load,
            tracer,
            create=self._join,
            with_admin=False,
            divided=True,
        )
        return self

    async def start(self, stop: asyncio.Event) -> bool:
        serves = await self._made.start(stop)
        if serves:
            self._registry = self._made.registry
            self._started.set_result(Loaded())
        return serves

    async def serve(self, stop: asyncio.Event) -> None:
        await self._made.serve(stop)

    async def close(self) -> None:
        await self._made.close()

    async def refuse(self, reason: str, stop: asyncio.Event) -> None:
        """The process cannot start: stay until the first one has been told, and ends this one."""
        self._started.set_result(Loaded(reason))
        await stop.wait()

    async def answer(self, stream: socket.socket, stop: asyncio.Event) -> None:
        """Whatever is asked, until the first process has gone."""
        reader, writer = await asyncio.open_unix_connection(sock=stream)

        def say(answer: Any) -> None:
            writer.write(frame(pickle.dumps(answer)))

        while (message := await read_message(reader)) is not None:
            match pickle.loads(message):
                case Join(ticket):
                    self._ticket.set_result(ticket)
                    self._started.add_done_callback(lambda started: say(started.result()))
                case Lost(reason):
                    if self._engine is not None:
                        self._engine.lost(reason)
                case Stop():
                    stop.set()
                case Scrape():
                    say(await asyncio.to_thread(self._scraped))
                case Live():
                    say(None)
        stop.set()

    def _scraped(self) -> list[Any]:
        try:
            return [] if self._registry is None else list(self._registry.collect())
        except Exception:
            log.exception("the metrics cannot be read")
            return []

    def _join(self, name: factory.EngineName, role: Role, settings: EngineSettings) -> Engine:
        self._engine = factory.join(name, role, settings, self._ticket)
        return self._engine

    @property
    def _made(self) -> server.WorkerServer:
        assert self._worker is not None, "made first"
        return self._worker
