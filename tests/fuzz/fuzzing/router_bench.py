"""A router in this process, between two workers that start every leg and end it when they are told,
and a frontend whose one request nobody may harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from tandem.byte_budget import ByteBudget
from tandem.v1 import common_pb2, router_pb2, worker_pb2
from tandem.wire.prompt_chunks import STREAM_BYTES, ChunkRoom, ReadChunks
from tandem_router.config import RouterConfig
from tandem_router.core.values import Phase
from tandem_router.links import FrontendLink, WorkerLink
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.servicer import RouterServicer
from tandem_router.translate import profile
from tandem_router.vouchers import KEY_BYTES, Vouchers

from .target import MODEL, FoundError

TRACE = "0af7651916cd43dd8448eb211c80319c"
GOOD = 4_000_000_011
"""The sequence of the request that nobody may harm; no input has the number."""
VOUCHERS = Vouchers(b"k" * KEY_BYTES)
_QUIET_TURNS = 4
_PHASES = {Phase.PREFILL: common_pb2.PHASE_PREFILL, Phase.DECODE: common_pb2.PHASE_DECODE}


class Context:
    """Of a call: keeps what is written, and how it was ended."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended: grpc.StatusCode | None = None

    def put(self, message: Any) -> bool:
        """Frames of a worker are bytes already."""
        whole = message if isinstance(message, bytes) else message.SerializeToString()
        self.written.append(whole)
        return True

    async def flushed(self) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        self.ended = code
        raise AbortedError

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


class AbortedError(Exception):
    """How grpc ends a call that was aborted."""


async def once(*messages: Any) -> AsyncIterator[Any]:
    """A stream of messages whose other end then goes on living."""
    for message in messages:
        yield message
    await asyncio.sleep(0)


class NoWorkers:
    def statuses(self) -> list[Any]:
        return []


class RouterBench:
    def __init__(self) -> None:
        config = RouterConfig(
            prefill=("127.0.0.1:1",),
            decode=("127.0.0.1:2",),
            client_logits_processors=("forced_sequence",),
            allow_reports=True,
        )
        self.relay = Relay(
            build_core(config), vouchers=VOUCHERS, chunk_room=ChunkRoom(2 * STREAM_BYTES)
        )
        self.servicer = RouterServicer(config, self.relay, NoWorkers())  # type: ignore[arg-type]
        self._links = {phase.value: WorkerLink() for phase in Phase}
        for phase in Phase:
            self.worker_up(phase)
        self.good = FrontendLink(config.max_backlog_bytes, ByteBudget())
        self.good_number = self.relay.frontend_up(self.good)
        self.good_legs: set[int] = set()

    def worker_up(self, phase: Phase) -> None:
        described = worker_pb2.WorkerDescription(
            name=phase.value,
            instance=phase.value,
            phase=_PHASES[phase],
            fingerprint=common_pb2.Fingerprint(model=MODEL),
            kv_endpoint="127.0.0.1:9",
            limits=worker_pb2.Limits(max_sequences=64, context_length=4096, vocabulary=2048),
            keeps_tasks=True,
            parks=phase is Phase.PREFILL,
        )
        link = self._links[phase.value] = WorkerLink()
        self.relay.worker_up(phase.value, link, listed_as=phase, profile=profile(described))

    async def start_good(self) -> None:
        """The request that nobody may harm."""
        submit = router_pb2.Submit(
            first_sequence=GOOD,
            n=1,
            trace_id=TRACE,
            model=MODEL,
            timeout_ms=2**31,
            task=common_pb2.Task(prompt_text="good").SerializeToString(),
        )
        messages: asyncio.Queue[Any] = asyncio.Queue()
        messages.put_nowait(router_pb2.FrontendMessage(submit=[submit]))
        number = self.good_number
        reading = self.servicer._read(
            _endless(messages), number, self.good, ReadChunks(ChunkRoom(0))
        )
        self._reading = asyncio.get_running_loop().create_task(reading)
        await self.settle()
        self.good.outbox.notify()
        self.good._take()

    async def settle(self) -> None:
        """Let workers say what they would, until all is quiet."""
        quiet = 0
        while quiet < _QUIET_TURNS:
            await asyncio.sleep(0)
            busy = [self._answer(name) for name in self._links]
            quiet = 0 if any(busy) else quiet + 1

    def _answer(self, worker: str) -> bool:
        """A worker starts what it is told to start, and ends what it is told to end."""
        command = self._links[worker]._take()
        if command is None:
            return False
        events = []
        for start in command.start:
            if start.sequence == GOOD:
                self.good_legs.add(start.leg)
            events.append(worker_pb2.LegEvent(leg=start.leg, started=worker_pb2.LegStarted()))
        for cancel in command.cancel:
            closed = worker_pb2.LegClosed(outcome=worker_pb2.LegClosed.OUTCOME_CANCELLED)
            events.append(worker_pb2.LegEvent(leg=cancel.leg, closed=closed))
        self.relay.frame(worker, worker_pb2.WorkerFrame(events=events))
        return True

    def check_good(self) -> None:
        """Its next row arrives, and nothing has ended it. Raises FoundError."""
        columns = common_pb2.TokenColumns(
            sequence=[GOOD], offset=[0], token_count=[1], text=["good"]
        )
        envelope = worker_pb2.Envelope(
            destination=self.good_number, payload=columns.SerializeToString()
        )
        self.relay.frame("decode", worker_pb2.WorkerFrame(envelopes=[envelope]))
        if self.good.failure is not None:
            raise FoundError("fault", f"another frontend was given up: {self.good.failure}")
        written = self.good._take()
        message = router_pb2.RouterMessage.FromString(written or b"")
        if columns.SerializeToString() not in message.payload:
            raise FoundError("fault", "another frontend's output is lost")
        if any(end.sequence == GOOD for end in message.ends):
            raise FoundError("fault", "another frontend's request was ended")

    @property
    def open(self) -> int:
        """Sequences beside the good one."""
        return self.relay.core.snapshot().open_sequences - 1

    def close(self) -> None:
        self._reading.cancel()


async def _endless(messages: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while True:
        yield await messages.get()
