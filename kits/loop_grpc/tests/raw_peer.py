"""A peer that sends frames as it likes, over a bare socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import hpack
from echo_service import MOST_BYTES, SERVICE, Stub, pack

from tandem_loop_grpc import frames
from tandem_loop_grpc.client import RpcCall, RpcChannel
from tandem_loop_grpc.frames import HEAD, HEAD_BYTES, frame

LONGEST = 60.0
"""Seconds of a test, lest it hang."""
Frame = tuple[int, int, int, bytes]
"""Kind, flags, stream, payload."""


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def close(self) -> None:
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def next(self) -> Frame:
        """Raises EOFError or OSError where the connection is over."""
        upper, lower, kind, flags, stream = HEAD.unpack(await self._reader.readexactly(HEAD_BYTES))
        return kind, flags, stream, await self._reader.readexactly((upper << 8) | lower)

    async def find(self, kind: int) -> Frame:
        """The next frame of that kind."""
        while (found := await self.next())[0] != kind:
            pass
        return found

    async def ending(self) -> int | None:
        """The code of the GOAWAY by which the other end says why it closes; None: it closed without
        a word.
        """
        code: int | None = None
        try:
            while True:
                kind, _, _, payload = await self.next()
                if kind == frames.GOAWAY:
                    code = frames.read_goaway(payload)[1]
        except (EOFError, OSError):
            return code

    def headers(self, *headers: tuple[str, str]) -> bytes:
        return self.encoder.encode(headers)

    def request(
        self, stream: int, method: str = "One", *more: tuple[str, str], service: str = SERVICE
    ) -> bytes:
        """What begins a call."""
        block = self.headers(
            (":method", "POST"),
            (":scheme", "http"),
            (":path", f"/{service}/{method}"),
            (":authority", "test"),
            ("content-type", "application/grpc"),
            *more,
        )
        return frame(frames.HEADERS, frames.END_HEADERS, stream, block)

    def answer(self, stream: int) -> bytes:
        """What begins an answer."""
        block = self.headers((":status", "200"), ("content-type", "application/grpc"))
        return frame(frames.HEADERS, frames.END_HEADERS, stream, block)

    def status(self, stream: int, status: str = "0") -> bytes:
        block = self.headers(("grpc-status", status))
        return frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, block)


def message(data: bytes) -> bytes:
    """A message as it stands in DATA frames."""
    packed = pack(data)
    return frames.MESSAGE_HEAD.pack(0, len(packed)) + packed


@asynccontextmanager
async def dialled(
    port: int, *, greets: bool = True, longest: float = LONGEST
) -> AsyncIterator[Peer]:
    """A client of the server at that port, for so many seconds at most."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = Peer(reader, writer)
    if greets:
        peer.send(frames.PREFACE, frames.settings({}))
    try:
        async with asyncio.timeout(longest):
            yield peer
    finally:
        await peer.close()


@asynccontextmanager
async def called(
    silence_seconds: float = 60.0,
) -> AsyncIterator[tuple[RpcChannel, asyncio.Queue[Peer]]]:
    """A channel of ours, and the servers that its connections reach."""
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    all_peers: list[Peer] = []

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        all_peers.append(peer)
        await reader.readexactly(len(frames.PREFACE))
        peer.send(frames.settings({}))
        peers.put_nowait(peer)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    channel = RpcChannel(
        f"127.0.0.1:{port}", None, most_bytes=MOST_BYTES, silence_seconds=silence_seconds
    )
    try:
        async with asyncio.timeout(LONGEST):
            yield channel, peers
    finally:
        await channel.close()
        server.close()
        for peer in all_peers:
            await peer.close()


@asynccontextmanager
async def talking(**timeout: float) -> AsyncIterator[tuple[RpcCall, Peer]]:
    """A call of ours that has sent a message, and the server that it reaches."""
    async with called() as (channel, peers):
        call = Stub(channel).talk(**timeout)
        await call.write(b"first")
        yield call, await peers.get()
