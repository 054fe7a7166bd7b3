"""The gRPC service of a worker: one stream for each router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from tandem.v1 import worker_pb2, worker_pb2_grpc
from tandem.worker.legs import DuplicateLegError, Legs
from tandem.worker.link import RouterLink

log = logging.getLogger(__name__)
FLUSH_SECONDS = 1.0
"""For the last frame to leave when a router ends the stream."""


class WorkerServicer(worker_pb2_grpc.WorkerServicer):
    """Holds the streams; what travels on them is for Legs to decide."""

    def __init__(
        self,
        *,
        legs: Legs,
        load: Callable[[], worker_pb2.Load],
        describe: Callable[[], worker_pb2.WorkerDescription],
        on_paired: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_paired`: a router says that a pair uses this worker."""
        self._legs = legs
        self._load = load
        self._describe = describe
        self._on_paired = on_paired
        self._links: set[RouterLink] = set()

    def report_load(self) -> None:
        """Tell every router what this worker carries."""
        for link in self._links:
            link.report_load()

    def close(self) -> None:
        """End every stream once what waits on it was sent."""
        for link in self._links:
            link.outbox.close()

    async def Describe(self, request: worker_pb2.DescribeWorkerRequest, context: Any) -> Any:
        return self._describe()

    async def Connect(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes
        self, request_iterator: AsyncIterator[worker_pb2.WorkerCommand], context: Any
    ) -> None:
        link = RouterLink(peer=context.peer(), load=self._load)
        self._links.add(link)
        link.outbox.notify()
        log.info("router connected", extra={"peer": link.peer})
        try:
            fault = await self._serve(link, request_iterator, context)
        finally:
            self._links.discard(link)
            log.info("router gone", extra={"peer": link.peer, "count": len(link.legs)})
            self._legs.drop(link)
        if fault:
            log.warning("stream given up", extra={"peer": link.peer, "reason": fault})
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, fault)

    async def _serve(
        self, link: RouterLink, commands: AsyncIterator[worker_pb2.WorkerCommand], context: Any
    ) -> str:
        """Until either side ends the stream. Returns what the router did wrong, if it did."""
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(link, commands))
            writing = tasks.create_task(_write(link, context))
            breaking = tasks.create_task(link.broken.wait())
            running: set[asyncio.Task[Any]] = {reading, writing, breaking}
            ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if reading in ended:
                # gRPC cannot send a status while a write is under way.
                link.outbox.close()
                await asyncio.wait({writing}, timeout=FLUSH_SECONDS)
            for task in running:
                task.cancel()
        if breaking in ended:
            return "the router does not read what it asked for"
        return reading.result() if reading in ended else ""

    async def _read(
        self, link: RouterLink, commands: AsyncIterator[worker_pb2.WorkerCommand]
    ) -> str:
        async for command in commands:
            if command.paired:
                await self._on_paired()
            try:
                for start in command.start:
                    self._legs.start(link, start)
            except DuplicateLegError as error:
                return str(error)
            for number in command.release:
                self._legs.release(link, number)
            for cancel in command.cancel:
                self._legs.cancel(link, cancel.leg, cancel.reason)
        return ""


async def _write(link: RouterLink, context: Any) -> None:
    async for frame in link.outbox.messages():
        await context.write(frame)
