"""A prefill and a decode worker for tests of routers and frontends together: real gRPC servers, any
number of routers each, and no engine. Decode answers every request with the same rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from tandem.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tandem.wire.frames import Draft
from tandem.wire.grpc import Server

ROWS = tuple(f"<{number}>" for number in range(8))


Spoil = Callable[[int, common_pb2.TokenColumns], bytes]
"""What is sent instead of the columns of a row, by the row's number."""


class EchoWorker(worker_pb2_grpc.WorkerServicer):
    def __init__(
        self,
        phase: common_pb2.Phase.ValueType,
        fingerprint: common_pb2.Fingerprint,
        spoil: Spoil | None = None,
    ) -> None:
        name = common_pb2.Phase.Name(phase)
        self._spoil = spoil
        self._decodes = phase == common_pb2.PHASE_DECODE
        self.runs: dict[str, int] = {}
        """How often each request was started, by its trace_id."""
        self._description = worker_pb2.WorkerDescription(
            name=name,
            instance=name,
            phase=phase,
            fingerprint=fingerprint,
            kv_endpoint="127.0.0.1:1",
            limits=worker_pb2.Limits(max_sequences=1024, context_length=4096, vocabulary=2048),
        )

    async def Describe(self, request: Any, context: Any) -> worker_pb2.WorkerDescription:
        return self._description

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        frames: asyncio.Queue[worker_pb2.WorkerFrame] = asyncio.Queue()
        frames.put_nowait(worker_pb2.WorkerFrame(load=worker_pb2.Load()))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read(request_iterator, frames, group))
            while not reading.done():
                await context.write(await self._next(frames))

    async def _next(self, frames: asyncio.Queue[worker_pb2.WorkerFrame]) -> worker_pb2.WorkerFrame:
        try:
            return await asyncio.wait_for(frames.get(), 0.5)
        except TimeoutError:
            return worker_pb2.WorkerFrame(load=worker_pb2.Load())

    async def _read(
        self,
        commands: AsyncIterator[worker_pb2.WorkerCommand],
        frames: asyncio.Queue[worker_pb2.WorkerFrame],
        group: asyncio.TaskGroup,
    ) -> None:
        async for command in commands:
            for start in command.start:
                group.create_task(self._run(start, frames))

    async def _run(
        self, start: worker_pb2.StartLeg, frames: asyncio.Queue[worker_pb2.WorkerFrame]
    ) -> None:
        trace_id = common_pb2.Task.FromString(start.task).trace_id
        self.runs[trace_id] = self.runs.get(trace_id, 0) + 1
        if self._decodes:
            started = worker_pb2.LegEvent(leg=start.leg, started=worker_pb2.LegStarted())
            frames.put_nowait(worker_pb2.WorkerFrame(events=[started]))
            for number, text in enumerate(ROWS):
                draft = Draft()
                draft.add(start.sequence, number, 1, text)
                if number == len(ROWS) - 1:
                    draft.rest.finish.append(_finish(start.sequence))
                payload = draft.serialize()
                if self._spoil is not None:
                    payload = self._spoil(number, common_pb2.TokenColumns.FromString(payload))
                envelope = worker_pb2.Envelope(destination=start.destination, payload=payload)
                frames.put_nowait(worker_pb2.WorkerFrame(envelopes=[envelope]))
                await asyncio.sleep(0.002)  # a step
        closed = worker_pb2.LegClosed(outcome=worker_pb2.LegClosed.OUTCOME_FINISHED)
        frames.put_nowait(
            worker_pb2.WorkerFrame(events=[worker_pb2.LegEvent(leg=start.leg, closed=closed)])
        )


def _finish(sequence: int) -> common_pb2.Finish:
    return common_pb2.Finish(
        sequence=sequence,
        reason=common_pb2.FINISH_REASON_STOP,
        completion_tokens=len(ROWS),
        rows=len(ROWS),
    )


@asynccontextmanager
async def echo_worker(
    phase: common_pb2.Phase.ValueType,
    fingerprint: common_pb2.Fingerprint,
    spoil: Spoil | None = None,
    *,
    spoil_frame: Callable[[worker_pb2.WorkerFrame], bytes] | None = None,
) -> AsyncIterator[tuple[EchoWorker, str]]:
    """The worker and its address. `spoil_frame`: what is sent instead of a frame."""
    worker, server = EchoWorker(phase, fingerprint, spoil), Server()

    def add(into: grpc.aio.Server) -> None:
        if spoil_frame is None:
            worker_pb2_grpc.add_WorkerServicer_to_server(worker, into)
            return
        methods = {
            "Connect": grpc.stream_stream_rpc_method_handler(
                worker.Connect,
                request_deserializer=worker_pb2.WorkerCommand.FromString,
                response_serializer=spoil_frame,
            ),
            "Describe": grpc.unary_unary_rpc_method_handler(
                worker.Describe,
                request_deserializer=worker_pb2.DescribeWorkerRequest.FromString,
                response_serializer=worker_pb2.WorkerDescription.SerializeToString,
            ),
        }
        into.add_registered_method_handlers("tandem.v1.Worker", methods)

    server.add(add, "tandem.v1.Worker")
    port = await server.start("127.0.0.1:0")
    try:
        yield worker, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)
