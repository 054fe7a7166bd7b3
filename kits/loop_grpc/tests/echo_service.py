"""A service of every kind of call, for ends of ours, of gRPC's own core and of grpc-go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from go_end import GoChannel, go_serving
from google.protobuf.wrappers_pb2 import BytesValue

from tandem_loop_grpc.client import RpcChannel
from tandem_loop_grpc.server import Listener

SERVICE = "test.Echo"
MOST_BYTES = 4 * 1024 * 1024
KINDS = ("core", "ours")


def pack(data: bytes) -> bytes:
    return BytesValue(value=data).SerializeToString()


def unpack(data: bytes) -> bytes:
    return BytesValue.FromString(data).value


class Echo:
    """Answers with what it is sent, and keeps what became of its calls."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """A handler of a stream, or a slow one, is done."""
        self.served = 0
        self.hold = asyncio.Event()

    async def one(self, message: BytesValue, context: Any) -> bytes:
        request = message.value
        self.served += 1
        if request == b"slow":
            await self._sleep()
        if request == b"raise":
            raise ValueError("a fault of the servicer")
        if request == b"metadata":
            said = dict(context.invocation_metadata())
            return f"{said.get('word')} {said.get('raw-bin')!r}".encode()
        if request == b"abort":
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "100 % no: \u00e9\n" + "x" * 100,
                (("why", "asked"), ("raw-bin", b"\x00\xff")),
            )
        return request

    async def many(self, request: BytesValue, context: Any) -> AsyncIterator[bytes]:
        for number in range(int(request.value)):
            yield b"%d" % number

    async def talk(self, requests: AsyncIterator[BytesValue], context: Any) -> None:
        self.served += 1
        try:
            async for message in requests:
                request = message.value
                if request == b"hold":
                    await self.hold.wait()
                if request == b"abort":
                    await context.abort(grpc.StatusCode.ABORTED, "as was asked")
                await context.write(request)
        finally:
            self.ended.set()

    async def flood(self, requests: AsyncIterator[BytesValue], context: Any) -> None:
        """Writes so many messages of so many bytes as its first request says."""
        count, size = (int(each) for each in (await anext(requests)).value.split())
        for _ in range(count):
            await context.write(bytes(size))

    async def _sleep(self) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            self.ended.set()

    def add_to(self, server: Any) -> None:
        kinds = {
            "One": grpc.unary_unary_rpc_method_handler(self.one),
            "Many": grpc.unary_stream_rpc_method_handler(self.many),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk),
            "Flood": grpc.stream_stream_rpc_method_handler(self.flood),
        }
        handlers = {
            name: each._replace(
                request_deserializer=BytesValue.FromString, response_serializer=pack
            )
            for name, each in kinds.items()
        }
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        server.add_generic_rpc_handlers((generic,))
        server.add_registered_method_handlers(SERVICE, handlers)


class Stub:
    def __init__(self, channel: Any) -> None:
        codec = {"request_serializer": pack, "response_deserializer": unpack}
        self.one: Any = channel.unary_unary(f"/{SERVICE}/One", **codec)
        self.none: Any = channel.unary_unary(f"/{SERVICE}/None", **codec)
        self.many: Any = channel.unary_stream(f"/{SERVICE}/Many", **codec)
        self.talk: Any = channel.stream_stream(f"/{SERVICE}/Talk", **codec)
        self.flood: Any = channel.stream_stream(f"/{SERVICE}/Flood", **codec)


def open_channel(kind: str, port: int, most_bytes: int = MOST_BYTES, **options: Any) -> Any:
    """A channel of that kind; `options` of grpc-go's."""
    address = f"127.0.0.1:{port}"
    if kind == "ours":
        return RpcChannel(address, None, most_bytes=most_bytes)
    if kind == "go":
        return GoChannel(address, most_bytes=most_bytes, **options)
    options = [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
    ]
    return grpc.aio.insecure_channel(address, options=options)


@asynccontextmanager
async def serving(kind: str, echo: Echo, **options: Any) -> AsyncIterator[int]:
    """The port of a server of that kind; `options` of ours and of grpc-go's."""
    if kind == "go":
        async with go_serving(echo.ended, **options) as port:
            yield port
        return
    if kind == "ours":
        listening = socket.create_server(("127.0.0.1", 0))
        server: Any = Listener(None, most_bytes=MOST_BYTES, **options)
        echo.add_to(server)
        await server.start(listening)
        port = listening.getsockname()[1]
    else:
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_BYTES)])
        echo.add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
    try:
        yield port
    finally:
        echo.hold.set()
        await server.stop(0)
