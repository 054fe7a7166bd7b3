"""A stream that is given up ends also where a message is being written at that moment: gRPC refuses
a status until it is written, and a stream without a status stays open for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from tandem.byte_budget import ByteBudget
from tandem.errors import InvalidRequestError
from tandem.v1 import router_pb2, worker_pb2
from tandem.wire.prompt_chunks import ChunkRoom, ReadChunks
from tandem.worker.core.outgoing import Outgoing
from tandem.worker.link import RouterLink
from tandem.worker.servicer import WorkerServicer
from tandem_router.config import RouterConfig
from tandem_router.links import FrontendLink
from tandem_router.servicer import RouterServicer


class Call:
    """What a servicer sees of a call whose peer reads when it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.writes = 0
        self.under_way = 0
        self.status: grpc.StatusCode | None = None

    def peer(self) -> str:
        return "somebody"

    def put(self, _: Any) -> bool:
        self.writes += 1
        self.under_way += 1
        return False

    async def flushed(self) -> None:
        await self.reads.wait()
        self.under_way -= 1

    async def abort(self, status: grpc.StatusCode, *_: Any, **__: Any) -> None:
        assert not self.under_way, "GRPC_CALL_ERROR_TOO_MANY_OPERATIONS"
        self.status = status

    async def silence(self) -> AsyncIterator[Any]:
        """The peer says nothing, and does not go."""
        await asyncio.Event().wait()
        yield


class OneLink:
    """Shell and relay in one, for one stream."""

    tracer = None
    budget = ByteBudget()
    chunk_room = ChunkRoom(0)

    def __init__(self, link: Any) -> None:
        self.link = link
        self.gone = False

    def connect(self, _: str) -> RouterLink:
        return self.link  # type: ignore[no-any-return]

    def disconnect(self, _: RouterLink) -> int:
        self.gone = True
        return 0

    def frontend_up(self, link: FrontendLink) -> int:
        self.link = link
        return 1

    def frontend_down(self, _: int) -> None:
        self.gone = True


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def ends_well(serving: asyncio.Task[None], call: Call, shell: OneLink) -> None:
    """What runs by it is let go at once, and the status follows the write."""
    await turns()
    assert (shell.gone, call.status, serving.done()) == (True, None, False)
    call.reads.set()
    await asyncio.wait_for(serving, 5.0)
    assert call.status is not None
    assert call.writes == 1


@pytest.mark.promise("S6-169")
async def test_a_worker_gives_a_router_up_in_the_middle_of_a_write() -> None:
    call = Call()
    link = RouterLink(
        number=1,
        peer="r",
        outgoing=Outgoing(ByteBudget().allotment()),
        load=worker_pb2.Load,
        chunks=ReadChunks(ChunkRoom(0)),
    )
    shell = OneLink(link)

    async def paired() -> None: ...

    servicer = WorkerServicer(
        shell=shell,  # type: ignore[arg-type]
        describe=worker_pb2.WorkerDescription,
        on_paired=paired,
    )
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(servicer.Connect(call.silence(), call))
        await turns()
        assert call.under_way == 1
        link.report_load()
        link.give_up("it used a leg's number twice")
        await ends_well(serving, call, shell)


@pytest.mark.promise("S6-169")
async def test_a_router_gives_a_frontend_up_in_the_middle_of_a_write() -> None:
    call, relay = Call(), OneLink(None)
    config = RouterConfig(prefill=("x:1",), decode=("y:1",))
    servicer = RouterServicer(config, relay, None)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(servicer.Connect(call.silence(), call))  # type: ignore[arg-type]
        await turns()
        relay.link.set_fleet(router_pb2.Fleet())
        await turns()
        assert call.under_way == 1
        relay.link.set_draining()
        relay.link.fail(InvalidRequestError("it said what cannot be"))
        await ends_well(serving, call, relay)
