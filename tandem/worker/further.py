"""A further process of a worker: a worker whose engine the first process has started.

It listens at an address of its own, and routers know it as any other. It ends with the first, and
when the first tells it so.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from contextlib import suppress
from typing import Any

from prometheus_client import CollectorRegistry

from tandem import orphans, process
from tandem.engine import factory
from tandem.engine.base import Engine, EngineSettings, JoinedEngine, Role
from tandem.errors import StartError
from tandem.hooks.contract import Phase
from tandem.tracing.spans import Tracer
from tandem.worker import server
from tandem.worker.config import WorkerConfig
from tandem.worker.phase import LoadPhase
from tandem.worker.process_link import (
    Channel,
    Join,
    Live,
    Lost,
    Question,
    Refused,
    Scrape,
    Serving,
    Stop,
)

log = logging.getLogger(__name__)


def run(
    stream: socket.socket,
    parent: int,
    number: int,
    phase: Phase,
    config: WorkerConfig,
    load: LoadPhase,
) -> None:
    """The whole life of the process of that number. `stream`: where the first process asks;
    `parent`: which one that is. `config`: of this one (WorkerConfig.of_process).
    """
    orphans.die_with(parent)

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

    sys.exit(server.until_engine_dies(live))


class Further:
    """The worker of this process, and what the first one asks of it."""

    def __init__(self, phase: Phase, config: WorkerConfig, load: LoadPhase) -> None:
        self._phase: Phase = phase
        self._config = config
        self._load = load
        loop = asyncio.get_running_loop()
        self._ticket: asyncio.Future[bytes] = loop.create_future()
        self._started: asyncio.Future[Serving | Refused] = loop.create_future()
        self._engine: JoinedEngine | None = None
        self._worker: server.Worker | None = None
        self._registry: CollectorRegistry | None = None

    def make(self, tracer: Tracer | None) -> Further:
        """As server.live asks for it. Raises StartError."""
        self._worker = server.Worker(
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
            self._started.set_result(Serving(self._made.port))
        return serves

    async def serve(self, stop: asyncio.Event) -> None:
        await self._made.serve(stop)

    async def close(self) -> None:
        await self._made.close()

    async def refuse(self, reason: str, stop: asyncio.Event) -> None:
        """It cannot start: be there until the first process has been told, and ends this one."""
        self._started.set_result(Refused(reason))
        await stop.wait()

    async def answer(self, stream: socket.socket, stop: asyncio.Event) -> None:
        """Whatever is asked, until the first process has gone."""
        channel = await Channel.over(stream)
        answering: set[asyncio.Task[None]] = set()
        try:
            while True:
                number, question = await channel.receive()
                answer = self._answer_one(channel, number, question, stop)
                answering.add(task := asyncio.get_running_loop().create_task(answer))
                task.add_done_callback(answering.discard)
        except (asyncio.IncompleteReadError, OSError):
            stop.set()

    async def _answer_one(
        self, channel: Channel, number: int, question: Question, stop: asyncio.Event
    ) -> None:
        with suppress(OSError):  # the first process has gone, which `answer` sees
            await channel.send((number, await self._answer(question, stop)))

    async def _answer(self, question: Question, stop: asyncio.Event) -> Any:
        match question:
            case Join(ticket):
                self._ticket.set_result(ticket)
                return await self._started
            case Lost(reason):
                if self._engine is not None:
                    self._engine.lost(reason)
            case Stop():
                stop.set()
            case Scrape():
                return await asyncio.to_thread(self._scraped)
            case Live():
                pass
        return None

    def _scraped(self) -> list[Any]:
        return [] if self._registry is None else list(self._registry.collect())

    def _join(self, name: factory.EngineName, role: Role, settings: EngineSettings) -> Engine:
        self._engine = factory.join(name, role, settings, self._ticket)
        return self._engine

    @property
    def _made(self) -> server.Worker:
        assert self._worker is not None, "made first"
        return self._worker
