"""Bytes of a gRPC port without sockets: a client's to a listener, and a server's to a channel."""

from __future__ import annotations

import asyncio
import gc
import sys
import zlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf
from random import Random
from typing import Any

import grpc
import grpc.aio
import hpack
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import BytesValue

from fuzzing import http2
from fuzzing.target import FoundError, Target
from tandem_loop_grpc import client, dialled, frames, server
from tandem_loop_grpc.frames import PREFACE, frame

MOST_BYTES = 256 * 1024
"""Of a message."""
MOST_WRITTEN = 4 * 1024 * 1024
"""Bytes that an input of any size may have us write, beside so many for each of its own."""
MOST_WRITTEN_A_BYTE = 16
MOST_HELD_BYTES = 4 * 1024 * 1024 + 4 * MOST_BYTES
MOST_HELD_OBJECTS = 40_000
MOST_TURNS = 20_000
_LOOKED_AT = 16
_LARGE_BYTES = 8192
_CALLS = 3
_TURNS_OF_BEGINNING = 6
_MOST_BESIDE = 2000
"""The number of the last call beside, whose answers fit into a connection's first window."""
MOST_LINES_A_TURN = 300_000
"""Lines of Python that one connection may take of a turn of the loop: some 30 ms."""
_COUNTED = ("/tandem_loop_grpc/", "/hpack/")


class Lines:
    """Counts those of the connection and its library in each turn, while it is entered."""

    def __init__(self) -> None:
        self._count = 0

    def __enter__(self) -> Lines:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def turn(self) -> None:
        """A turn is over. Raises FoundError where it took too much."""
        count, self._count = self._count, 0
        if count > MOST_LINES_A_TURN:
            raise FoundError(
                "fault", f"a turn of the loop takes more than {MOST_LINES_A_TURN} lines"
            )

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        if any(each in frame.f_code.co_filename for each in _COUNTED):
            return self._line
        return None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        self._count += 1
        return self._line


class Wire(asyncio.Transport):
    """A socket whose peer reads at once, and sends nothing while it may not."""

    def __init__(self, protocol: Any) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = bytearray()
        self.count = 0
        self.reading = True
        self.closing = False
        self.protocol = protocol
        self._lines: Lines | None = None
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        self.count += len(data)
        self.written += data
        del self.written[:-65_536]

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    async def feed(self, data: bytes) -> None:
        """In pieces, as the network might cut them, each once it may come. The work of some inputs
        is counted.
        """
        with ExitStack() as stack:
            if _is_looked_at(data) and sys.gettrace() is None:
                self._lines = stack.enter_context(Lines())
            for piece in _pieces(data):
                if self.closing:
                    return
                self.protocol.data_received(piece)
                self._turn()
                await self.rest()

    async def rest(self) -> None:
        """Until what has come may be followed by more. Raises FoundError where that never is."""
        for _ in range(MOST_TURNS):
            await asyncio.sleep(0)
            self._turn()
            if self.reading or self.closing:
                return
        raise FoundError("fault", f"a connection rests for {MOST_TURNS} turns of the loop")

    def _turn(self) -> None:
        if self._lines is not None:
            self._lines.turn()


def _pieces(data: bytes) -> Iterator[bytes]:
    random = Random(zlib.crc32(data))
    while data:
        size = len(data) if random.randrange(3) else random.randint(1, len(data))
        yield data[:size]
        data = data[size:]


def _is_looked_at(data: bytes) -> bool:
    """Whether it is counted what is kept for this input, and done in each turn: that is slow, so
    for all that are large, and of the others for one in so many.
    """
    return len(data) > _LARGE_BYTES or zlib.crc32(data) % _LOOKED_AT == 0


def check(connection: Any, wire: Wire, data: bytes) -> None:
    """Raises FoundError where an input costs more than it may."""
    if wire.count > MOST_WRITTEN + MOST_WRITTEN_A_BYTE * len(data):
        raise FoundError("fault", "an input has far more written than it is large")
    if len(connection.streams) > server.MOST_CALLS:
        raise FoundError("fault", "more streams are kept than there may be")
    if _is_looked_at(data):
        objects, held = kept(connection)
        if held > MOST_HELD_BYTES or objects > MOST_HELD_OBJECTS:
            raise FoundError("fault", "a connection keeps more than it may")


_CONTAINERS = (bytes, bytearray, str, list, tuple, dict, set, deque)


def kept(connection: Any) -> tuple[int, int]:
    """How many objects and bytes are kept for a peer, the libraries' among them."""
    seen: set[int] = set()
    waiting: list[Any] = [connection]
    objects = held = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        objects += 1
        if isinstance(each, bytes | bytearray | str):
            held += len(each)
            continue
        if isinstance(each, _CONTAINERS):
            objects += len(each)
        for found in gc.get_referents(each):
            ours = type(found).__module__.startswith(("tandem_loop_grpc", "hpack"))
            if isinstance(found, _CONTAINERS) or (ours and not isinstance(found, server.Listener)):
                waiting.append(found)
    return objects, held


class Echo:
    """Answers with what it is sent."""

    async def one(self, message: BytesValue, context: Any) -> BytesValue:
        return message

    async def talk(self, requests: AsyncIterator[BytesValue], context: Any) -> None:
        try:
            async for message in requests:
                await context.write(message)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a message cannot be read")

    def add_to(self, listener: server.Listener) -> None:
        codec: dict[str, Any] = {
            "request_deserializer": BytesValue.FromString,
            "response_serializer": BytesValue.SerializeToString,
        }
        handlers = {
            "One": grpc.unary_unary_rpc_method_handler(self.one, **codec),
            "Talk": grpc.stream_stream_rpc_method_handler(self.talk, **codec),
        }
        listener.add_registered_method_handlers("fuzz.Echo", handlers)


class ServerSubject:
    """A connection for each input, and beside it one whose calls must be answered."""

    def __init__(self) -> None:
        self._listener = server.Listener(None, most_bytes=MOST_BYTES)
        Echo().add_to(self._listener)
        self._good: Wire | None = None
        self._number = 1
        self._encoder = hpack.Encoder()

    async def give(self, data: bytes) -> None:
        connection: Any = server.Served(self._listener)
        wire = Wire(connection)
        try:
            await wire.feed(PREFACE + data)
            for _ in range(4):
                await asyncio.sleep(0)
            check(connection, wire, data)
            await self._ask_beside()
        finally:
            wire.close()
            await self._end()

    async def left_open(self) -> int:
        if self._good is not None:
            self._good.close()
            await asyncio.sleep(0)
        return len(self._listener.connections) + len(self._listener.tasks)

    async def _end(self) -> None:
        for _ in range(MOST_TURNS):
            alone = self._listener.connections <= {self._good and self._good.protocol}
            if alone and not self._listener.tasks:
                return
            await asyncio.sleep(0)
        raise FoundError("leak", "calls go on whose connection is gone")

    async def _ask_beside(self) -> None:
        if self._good is None or self._number > _MOST_BESIDE:
            await self._dial_beside()
        assert self._good is not None
        answer = b"\x0a\x04good"
        self._good.written.clear()
        block = self._encoder.encode(
            [*http2.CALL[:2], (b":path", b"/fuzz.Echo/One"), *http2.CALL[3:]]
        )
        self._good.protocol.data_received(
            frame(frames.HEADERS, frames.END_HEADERS, self._number, block)
            + frame(frames.DATA, frames.END_STREAM, self._number, http2.message(b"good"))
        )
        self._number += 2
        for _ in range(MOST_TURNS):
            if answer in self._good.written:
                return
            await asyncio.sleep(0)
        raise FoundError("fault", "a client beside got no answer")

    async def _dial_beside(self) -> None:
        if self._good is not None:
            self._good.close()
        self._number, self._encoder = 1, hpack.Encoder()
        self._good = Wire(server.Served(self._listener))
        await self._good.feed(PREFACE + frames.settings({}))


class ClientSubject:
    """Three calls of a channel, to a server that says what the input does, and then goes."""

    async def give(self, data: bytes) -> None:
        connection = dialled.Dialled(most_bytes=MOST_BYTES, silence_seconds=inf)
        wire = Wire(connection)
        channel = client.RpcChannel("127.0.0.1:1", None, most_bytes=MOST_BYTES)
        channel._connections.append(connection)
        reading = [asyncio.ensure_future(_read(channel)) for _ in range(_CALLS)]
        for _ in range(_TURNS_OF_BEGINNING):
            await asyncio.sleep(0)
        try:
            await wire.feed(data)
            check(connection, wire, data)
        finally:
            wire.close()
            ended = await asyncio.gather(*reading, return_exceptions=True)
            await channel.close()
        for error in ended:
            if error is not None:
                raise error

    async def left_open(self) -> int:
        return 0


async def _read(channel: client.RpcChannel) -> None:
    """All that comes. Raises what is not the status of a call."""
    talk = channel.stream_stream(
        "/fuzz.Echo/Talk", BytesValue.SerializeToString, BytesValue.FromString
    )
    try:
        async for _ in talk():
            pass
    except grpc.aio.AioRpcError:
        return


def _of_clients() -> Sequence[bytes]:
    block = hpack.Encoder().encode
    hello = frame(frames.SETTINGS, 0, 0) + frame(frames.SETTINGS, frames.ACK, 0)
    talk = frame(frames.HEADERS, frames.END_HEADERS, 1, block(http2.CALL))
    first, second = block(http2.CALL)[:20], block(http2.CALL)[20:]
    cut = frame(frames.HEADERS, 0, 3, first) + frame(
        frames.CONTINUATION, frames.END_HEADERS, 3, second
    )
    said = frame(frames.DATA, 0, 1, http2.message(b"hello") * 3)
    ends = frame(frames.DATA, frames.END_STREAM, 1, http2.message(b"bye"))
    ping = frame(frames.PING, 0, 0, bytes(8))
    window = frames.window_update(0, 70_000) + frames.window_update(1, 70_000)
    asked = frames.settings({1: 4096, 3: 100, 4: 65_535, 5: 16_384})
    calls = b"".join(
        frame(frames.HEADERS, frames.END_HEADERS, number, block(http2.CALL))
        + frame(frames.DATA, 0, number, http2.message(b"x" * 50))
        for number in range(1, 40, 2)
    )
    return [
        hello + talk + said + ends,
        asked + talk + said + window + ping + cut + ends,
        hello + talk + said + frames.reset(1, frames.Code.CANCEL) + cut,
        frames.settings({4: 0}) + talk + said + asked + window + ends,
        hello + calls + window + frames.goaway(0, frames.Code.NO_ERROR),
        hello + frame(frames.PRIORITY, 0, 1, bytes(5)) + talk + ends + frame(0x77, 0, 0, b"?"),
    ]


def _of_servers() -> Sequence[bytes]:
    block = hpack.Encoder().encode
    hello = frames.settings({3: 100, 4: 70_000}) + frame(frames.SETTINGS, frames.ACK, 0)

    def answer(number: int) -> bytes:
        return (
            frame(frames.HEADERS, frames.END_HEADERS, number, block(http2.ANSWER))
            + frame(frames.DATA, 0, number, http2.message(b"hello") * 3)
            + frame(frames.HEADERS, frames.END_HEADERS | 1, number, block(http2.TRAILERS))
        )

    alone = frame(
        frames.HEADERS, frames.END_HEADERS | 1, 3, block([*http2.ANSWER, *http2.TRAILERS])
    )
    return [
        hello + answer(1) + answer(3) + answer(5),
        hello + alone + frames.reset(5, frames.Code.REFUSED_STREAM),
        hello + answer(5)[:60] + answer(1) + frames.goaway(3, frames.Code.NO_ERROR) + answer(3),
        hello + frames.window_update(0, 9) + frame(frames.PING, 0, 0, bytes(8)) + answer(3),
    ]


@contextmanager
def _subject(kind: type[Any]) -> Iterator[Any]:
    yield kind()


def _server() -> Any:
    return _subject(ServerSubject)


def _client() -> Any:
    return _subject(ClientSubject)


RPC_SERVERS = Target(
    name="rpc-server", goal=600_000, corpus=_of_clients, spoil=http2.spoil, subject=_server
)
RPC_CLIENTS = Target(
    name="rpc-client", goal=400_000, corpus=_of_servers, spoil=http2.spoil, subject=_client
)
