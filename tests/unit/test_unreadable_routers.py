"""A router whose message cannot be read loses that stream, and the log says why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc.aio
import pytest
from prometheus_client import CollectorRegistry

from tandem.byte_budget import ByteBudget
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.router_stream import RouterStream
from tandem.upstream.routers import Routers
from tandem.v1 import router_pb2
from tandem.wire import frames
from tandem.wire.grpc import Server

WAIT_SECONDS = 60.0
NO_MESSAGE = b"\xff"
PART = frames.write_part(1, b"")
UNREADABLE = "a message is no tandem.v1.RouterMessage"


class Told:
    """Whatever the link says of its streams."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def opened(self, stream: RouterStream) -> None:
        self.said.append("opened")

    def receive(self, stream: RouterStream, message: router_pb2.RouterMessage) -> None:
        self.said.append("message")

    def unsent(self, firsts: Sequence[int]) -> None:
        self.said.append("unsent")

    def ended(self, stream: RouterStream, *, drained: bool) -> None:
        self.said.append("ended")


class Complaints(logging.Handler):
    """Keeps the reasons that the link logs, and says when there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: list[str] = []
        self.one = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if reason := getattr(record, "reason", ""):
            self.reasons.append(reason)
            self.one.set()


@pytest.mark.parametrize(
    ("messages", "said", "why"),
    [
        ([NO_MESSAGE], [], UNREADABLE),
        ([b"", NO_MESSAGE], ["opened", "message", "ended"], UNREADABLE),
        ([b"", PART, NO_MESSAGE], ["opened", "message", "message", "ended"], UNREADABLE),
        ([PART], [], "output comes before the router has greeted"),
    ],
    ids=["its greeting", "a later one", "one after output", "output in place of a greeting"],
)
async def test_a_message_of_a_router_that_cannot_be_read_ends_its_stream_and_is_named(
    messages: list[bytes], said: list[str], why: str
) -> None:
    told, complaints = Told(), Complaints()
    log = logging.getLogger("tandem.upstream.router_link")
    log.addHandler(complaints)
    server = Server()
    server.add(lambda into: _say(into, messages), "tandem.v1.Router")
    port = await server.start("127.0.0.1:0")
    routers = Routers([f"127.0.0.1:{port}"], UpstreamMetrics(CollectorRegistry()), ByteBudget())
    running = asyncio.ensure_future(routers.run(told))
    try:
        await asyncio.wait_for(complaints.one.wait(), WAIT_SECONDS)
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await server.stop(0)
        log.removeHandler(complaints)
    assert complaints.reasons[0] == f"the router broke the protocol: {why}"
    assert told.said[: len(said)] == said


def _say(into: grpc.aio.Server, messages: Sequence[bytes]) -> None:
    """Serve streams on which nothing follows these bytes."""

    async def connect(requests: AsyncIterator[Any], _: Any) -> AsyncIterator[bytes]:
        for message in messages:
            yield message
        async for _request in requests:
            pass

    handler = grpc.stream_stream_rpc_method_handler(
        connect, request_deserializer=router_pb2.FrontendMessage.FromString
    )
    into.add_registered_method_handlers("tandem.v1.Router", {"Connect": handler})
