"""Workers over real gRPC that do what a test says, and a discovery that lists what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

from tandem.errors import QueueFullError
from tandem.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tandem.wire.grpc import Server
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed, Listing, Watchkeeper

SECONDS = 60.0
FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED
CANCELLED = worker_pb2.LegClosed.OUTCOME_CANCELLED
FAILED = worker_pb2.LegClosed.OUTCOME_FAILED
_PHASES = {Phase.PREFILL: common_pb2.PHASE_PREFILL, Phase.DECODE: common_pb2.PHASE_DECODE}
T = TypeVar("T")


async def soon(what: Awaitable[T]) -> T:
    return await asyncio.wait_for(what, SECONDS)


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Poll what can only be asked."""
    async with asyncio.timeout(SECONDS):
        while True:
            answer = holds()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.01)


class FakeDiscovery:
    def __init__(self) -> None:
        self.keeper = Watchkeeper()
        self._lists: asyncio.Queue[Listing] = asyncio.Queue()

    def say(self, *workers: FakeWorker | Listed, routers: Collection[str] = ()) -> None:
        listed = (each.listed if isinstance(each, FakeWorker) else each for each in workers)
        self._lists.put_nowait(Listing(tuple(listed), frozenset(routers)))

    async def listings(self) -> AsyncGenerator[Listing]:
        while True:
            yield await self._lists.get()


class Stream:
    """One router's."""

    def __init__(self) -> None:
        self.starts: asyncio.Queue[worker_pb2.StartLeg] = asyncio.Queue()
        self.open: dict[int, worker_pb2.StartLeg] = {}
        self.paired = 0
        self.reports = 0
        self.outgoing: asyncio.Queue[worker_pb2.WorkerFrame | None] = asyncio.Queue()

    async def start(self) -> worker_pb2.StartLeg:
        return await soon(self.starts.get())

    def rooms(self) -> set[int]:
        """Of its open legs."""
        return {each.room for each in self.open.values()}

    def finish(self, start: worker_pb2.StartLeg) -> None:
        """With the end that the client reads; of a prefill leg nobody reads one."""
        finish = common_pb2.Finish(sequence=start.sequence)
        payload = common_pb2.TokenColumns(finish=[finish]).SerializeToString()
        envelope = worker_pb2.Envelope(destination=start.destination, payload=payload)
        self.close(start.leg, envelopes=[envelope] if start.kv_peer else [])

    def close(
        self,
        leg: int,
        outcome: Any = FINISHED,
        *,
        envelopes: Sequence[worker_pb2.Envelope] = (),
        **fields: Any,
    ) -> None:
        self.open.pop(leg, None)
        closed = worker_pb2.LegClosed(outcome=outcome, **fields)
        event = worker_pb2.LegEvent(leg=leg, closed=closed)
        self.outgoing.put_nowait(worker_pb2.WorkerFrame(envelopes=envelopes, events=[event]))


class FakeWorker(worker_pb2_grpc.WorkerServicer):
    """Cancels what it is told to cancel, refuses what is too much, and reports its load ten times a
    second.
    """

    def __init__(self, phase: Phase, *, slots: int = 4) -> None:
        self.phase = phase
        self.streams: list[Stream] = []
        """Every one since the start; one is open while it is in `live`."""
        self.live: list[Stream] = []
        self.ignores_cancels = False
        self.first: worker_pb2.WorkerFrame | None = None
        """What it says first of each stream; None: nothing of its own."""
        self.step_age_ms: int | None = None
        """Of its reports; None: it does not say."""
        self.described = asyncio.Event()
        """Cleared: it does not answer."""
        self.described.set()
        self.address = ""
        self.description = worker_pb2.WorkerDescription(
            name="fake",
            phase=_PHASES[phase],
            fingerprint=common_pb2.Fingerprint(model="tiny"),
            kv_endpoint="10.0.0.1:9000",
            limits=worker_pb2.Limits(max_sequences=slots, context_length=100, vocabulary=50),
        )
        self._server = Server()

    @property
    def listed(self) -> Listed:
        return Listed(self.address, self.phase)

    @property
    def open_legs(self) -> int:
        return sum(len(each.open) for each in self.live)

    async def listen(self, address: str = "127.0.0.1:0") -> None:
        self._server = Server()
        self._server.add(
            lambda into: worker_pb2_grpc.add_WorkerServicer_to_server(self, into),
            "tandem.v1.Worker",
        )
        self.address = f"127.0.0.1:{await self._server.start(address)}"

    async def stop(self) -> None:
        await self._server.stop(0)

    async def stream(self, number: int = 1) -> Stream:
        """Of the router that was the so-manieth to connect."""
        await until(lambda: len(self.streams) >= number)
        return self.streams[number - 1]

    async def Describe(self, request: Any, context: Any) -> worker_pb2.WorkerDescription:
        await self.described.wait()
        return self.description

    async def Connect(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        stream = Stream()
        if self.first is not None:
            stream.outgoing.put_nowait(self.first)
        self.streams.append(stream)
        self.live.append(stream)
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(self._read(stream, request_iterator))
                while (frame := await self._next(stream)) is not None:
                    await context.write(frame)
                reader.cancel()
        finally:
            self.live.remove(stream)

    async def _next(self, stream: Stream) -> worker_pb2.WorkerFrame | None:
        try:
            return await asyncio.wait_for(stream.outgoing.get(), 0.1)
        except TimeoutError:
            stream.reports += 1
            load = worker_pb2.Load(open_legs=self.open_legs, step_age_ms=self.step_age_ms)
            return worker_pb2.WorkerFrame(load=load)

    async def _read(
        self, stream: Stream, commands: AsyncIterator[worker_pb2.WorkerCommand]
    ) -> None:
        async for command in commands:
            stream.paired += command.paired
            for start in command.start:
                if self.open_legs >= self.description.limits.max_sequences:
                    error = QueueFullError("this worker is full").to_proto()
                    stream.close(start.leg, FAILED, error=error, retryable=True)
                else:
                    stream.open[start.leg] = start
                    stream.starts.put_nowait(start)
            for cancel in command.cancel:
                if cancel.leg in stream.open and not self.ignores_cancels:
                    stream.close(cancel.leg, CANCELLED)
        stream.outgoing.put_nowait(None)
