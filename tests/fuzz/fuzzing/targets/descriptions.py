"""What a worker says of itself when a router connects to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from typing import Any

from google.protobuf.message import DecodeError

from fuzzing.messages import spoil_message
from fuzzing.router_bench import RouterBench
from fuzzing.target import MODEL, FoundError, Target
from tandem.errors import WorkerError
from tandem.v1 import common_pb2, worker_pb2
from tandem_router.connection import WorkerConnection
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed

_PATIENCE_SECONDS = 60.0


class Worker:
    """A stub of one that describes itself, sends a frame, and goes."""

    def __init__(self, described: worker_pb2.WorkerDescription) -> None:
        self._described = described
        self._frames = [worker_pb2.WorkerFrame(load=described.load)]

    def Connect(self, commands: AsyncIterator[Any], *, metadata: object) -> Worker:
        return self

    async def Describe(
        self, request: Any, *, timeout: float, metadata: object
    ) -> worker_pb2.WorkerDescription:
        return self._described

    async def read(self) -> worker_pb2.WorkerFrame:
        return self._frames.pop()

    async def hand_on(self, _: object) -> None:
        raise WorkerError("its stream broke")

    def cancel(self) -> None: ...


class DescriptionsSubject:
    """Each input is of another worker; beside it a good request goes on."""

    def __init__(self, bench: RouterBench) -> None:
        self._bench = bench
        self._phases = cycle(Phase)
        self._started = False

    async def give(self, data: bytes) -> None:
        if not self._started:
            self._started = True
            await self._bench.start_good()
        try:
            described = worker_pb2.WorkerDescription.FromString(data)
        except DecodeError:
            return  # gRPC ends the call before we see it
        address = "127.0.0.1:3"
        connection = WorkerConnection(
            Listed(address, next(self._phases)),
            self._bench.relay,
            silence_seconds=9.0,
        )
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await connection._serve(Worker(described))  # type: ignore[arg-type]
        except WorkerError:
            pass
        finally:
            connection.complaints.close()
            if connection.connected:
                self._bench.relay.worker_down(address, "its stream ended", died=True)
        await self._bench.settle()
        self._bench.check_good()
        if self._bench.open:
            raise FoundError("leak", "a sequence outlives its worker")

    async def left_open(self) -> int:
        return self._bench.open


def _descriptions() -> Sequence[bytes]:
    whole = worker_pb2.WorkerDescription(
        name="w",
        instance="i",
        phase=common_pb2.PHASE_PREFILL,
        fingerprint=common_pb2.Fingerprint(model=MODEL, engine="sim"),
        kv_endpoint="127.0.0.1:9",
        limits=worker_pb2.Limits(max_sequences=8, context_length=4096, vocabulary=2048),
        load=worker_pb2.Load(open_legs=1, kv_tokens_used=3, kv_tokens_total=9),
        logits_processors=["forced_sequence"],
        keeps_tasks=True,
    )
    decode = worker_pb2.WorkerDescription(name="d", phase=common_pb2.PHASE_DECODE)
    decode.limits.CopyFrom(whole.limits)
    decode.fingerprint.CopyFrom(whole.fingerprint)
    return [message.SerializeToString() for message in (whole, decode)]


@contextmanager
def _subject() -> Iterator[DescriptionsSubject]:
    bench = RouterBench()
    yield DescriptionsSubject(bench)
    bench.close()


DESCRIPTIONS = Target(
    name="worker-descriptions",
    goal=50_000,
    corpus=_descriptions,
    spoil=partial(spoil_message, worker_pb2.WorkerDescription),
    subject=_subject,
)
