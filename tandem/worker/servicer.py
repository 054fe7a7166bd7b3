"""The gRPC service of a worker: one stream for each router."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from tandem.v1 import worker_pb2, worker_pb2_grpc
from tandem.wire import faces
from tandem.wire.grpc import answering_bytes
from tandem.worker.link import RouterLink
from tandem.worker.shell import Shell

log = logging.getLogger(__name__)
FLUSH_SECONDS = 1.0
"""For the last frame to leave when a router ends the stream."""


class _Servicer(worker_pb2_grpc.WorkerServicer):
    def add_to(self, server: Any) -> None:
        """Frames are bytes already (RouterLink)."""
        worker_pb2_grpc.add_WorkerServicer_to_server(self, answering_bytes(server, "Connect"))


class WorkerServicer(_Servicer):
    """Holds the streams; what travels on them is the core's to decide."""

    def __init__(
        self,
        *,
        shell: Shell,
        describe: Callable[[], worker_pb2.WorkerDescription],
        on_paired: Callable[[], Awaitable[None]],
    ) -> None:
        """`on_paired`: a router says that a pair uses this worker."""
        self._shell = shell
        self._describe = describe
        self._on_paired = on_paired

    async def Describe(self, request: worker_pb2.DescribeWorkerRequest, context: Any) -> Any:
        return self._describe()

    async def Connect(  # type: ignore[override]  # a coroutine that writes will do
        self, request_iterator: AsyncIterator[worker_pb2.WorkerCommand], context: Any
    ) -> None:
        link = self._shell.connect(context.peer())
        link.outbox.notify()
        log.info("router connected", extra={"peer": link.peer})
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(link, request_iterator))
            writing = tasks.create_task(link.outbox.write_to(context))
            breaking = tasks.create_task(link.broken.wait())
            try:
                running: set[asyncio.Task[Any]] = {reading, writing, breaking}
                ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if reading in ended:
                    link.outbox.close()
                    await asyncio.wait({writing}, timeout=FLUSH_SECONDS)
            finally:
                reading.cancel()
                breaking.cancel()
                link.outbox.stop()
                count = self._shell.disconnect(link)
                log.info("router disconnected", extra={"peer": link.peer, "count": count})
        if link.fault:
            log.warning(
                "a router's stream was closed for a fault of the router",
                extra={"peer": link.peer, "reason": link.fault},
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, link.fault)

    async def _read(
        self, link: RouterLink, commands: AsyncIterator[worker_pb2.WorkerCommand]
    ) -> None:
        try:
            async for command in commands:
                if command.paired:
                    self._shell.proved()
                    await self._on_paired()
                await self._shell.take(link, command)
        except DecodeError:
            link.give_up("a command cannot be read, or is too much to be read")
            await link.broken.wait()


class PhasesServicer(_Servicer):
    """Several phases at one address: each call says which it means."""

    def __init__(self, phases: Mapping[str, WorkerServicer]) -> None:
        self._phases = phases

    async def Describe(self, request: worker_pb2.DescribeWorkerRequest, context: Any) -> Any:
        return await (await self._meant(context)).Describe(request, context)

    async def Connect(  # type: ignore[override]  # as WorkerServicer's
        self, request_iterator: AsyncIterator[worker_pb2.WorkerCommand], context: Any
    ) -> None:
        await (await self._meant(context)).Connect(request_iterator, context)

    async def _meant(self, context: Any) -> WorkerServicer:
        meant = self._phases.get(faces.phase_of(context))
        if meant is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                "this worker serves both phases, and the call names no phase: list the worker"
                " in the router's setting workers",
            )
            raise AssertionError("abort raises")
        return meant
