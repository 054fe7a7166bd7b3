"""A reverse proxy that reads more leniently than others do, and writes anew what it read.

It stands for proxies that no test has. What it takes: line feeds alone, blank lines
before a request, folded headers, spaces before a colon, absolute targets, any Upgrade, and a length
beside `chunked`, which then counts. What it writes is its own reading, so a frontend must see the
same requests there. One connection to the frontend serves all clients in turn; bytes that nobody
asked for are not noticed but go to whoever is next.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

BAD = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_OWN = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"te"),
    *(b"host", b"transfer-encoding", b"content-length"),
}
"""Headers that it writes by its own reading, or not at all."""


class UnreadableError(Exception):
    """Not even lenient reading makes a request of it."""


@dataclass
class Head:
    start: bytes
    headers: list[tuple[bytes, bytes]]

    def get(self, name: bytes) -> bytes:
        return b",".join(value for each, value in self.headers if each == name)

    @property
    def chunked(self) -> bool:
        return self.get(b"transfer-encoding").lower().strip().endswith(b"chunked")

    @property
    def length(self) -> int:
        """Of the body, in bytes, where it is not chunked."""
        values = set(self.get(b"content-length").replace(b" ", b"").split(b",")) - {b""}
        if not all(each.isdigit() for each in values) or len(values) > 1:
            raise UnreadableError
        return int(values.pop()) if values else 0


class Upstream:
    """The one connection to the frontend, dialled again when it has ended."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.turn = asyncio.Lock()
        self.switched = 0
        """Answers that gave a connection over to another protocol."""
        self.reader: StreamReader
        self.writer: StreamWriter | None = None

    async def dial(self) -> StreamWriter:
        if self.writer is None or self.reader.at_eof():
            self.drop()
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self.writer

    def drop(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()
        self.writer = None


async def read_head(reader: StreamReader) -> Head:
    """Raises IncompleteReadError where the connection ends, UnreadableError where it is no head."""
    lines: list[bytes] = []
    while True:
        line = (await reader.readuntil(b"\n")).rstrip(b"\r\n")
        if line[:1] in (b" ", b"\t") and len(lines) > 1:
            lines[-1] += b" " + line.strip()
        elif line:
            lines.append(line)
        elif lines:
            break
    headers = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon:
            raise UnreadableError
        headers.append((name.strip().lower(), value.strip()))
    return Head(lines[0], headers)


async def body(reader: StreamReader, head: Head) -> AsyncIterator[bytes]:
    """The pieces of a body; what a chunk says beside its size is not looked at."""
    if not head.chunked:
        left = head.length
        while left:
            piece = await reader.read(min(left, 1 << 16))
            if not piece:
                raise IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece
        return
    while True:
        size = (await reader.readuntil(b"\n")).partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            raise UnreadableError from None
        if not length:
            while (await reader.readuntil(b"\n")).strip():
                pass  # trailers are dropped
            return
        yield await reader.readexactly(length)
        await reader.readuntil(b"\n")


def written(head: Head) -> bytes:
    """A request as the proxy says it."""
    method, _, rest = head.start.partition(b" ")
    target = rest.rpartition(b" ")[0].strip() or rest
    host = head.get(b"host").partition(b",")[0]
    if b"://" in target:
        host, slash, path = target.partition(b"://")[2].partition(b"/")
        target = slash + path or b"/"
    lines = [b"%b %b HTTP/1.1" % (method, target), b"host: " + (host or b"x")]
    lines += [b"%b: %b" % each for each in head.headers if each[0] not in _OWN]
    if head.get(b"upgrade"):
        lines.append(b"connection: upgrade")
    if head.chunked:
        lines.append(b"transfer-encoding: chunked")
    elif head.get(b"content-length"):
        lines.append(b"content-length: %d" % head.length)
    return b"\r\n".join([*lines, b"x-request-id: proxy", b"", b""])


class LenientProxy:
    def __init__(self, port: int) -> None:
        self.upstream = Upstream(port)
        self._serving: set[asyncio.Task[None]] = set()

    def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        self.upstream.drop()

    async def _serve(self, client: StreamReader, writer: StreamWriter) -> None:
        try:
            while True:
                head = await read_head(client)
                request = written(head)
                async with self.upstream.turn:
                    if not await self._exchange(head, request, client, writer):
                        return
        except (UnreadableError, asyncio.LimitOverrunError):
            writer.write(BAD)
        except (OSError, IncompleteReadError):
            pass  # one of both has gone
        finally:
            writer.close()

    async def _exchange(
        self, head: Head, request: bytes, client: StreamReader, writer: StreamWriter
    ) -> bool:
        """One request and its answer; whether the client's connection goes on."""
        frontend = await self.upstream.dial()
        frontend.write(request)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(self._send(head, client, frontend))
            try:
                last = await self._answer(head, writer)
            except (OSError, IncompleteReadError, UnreadableError):
                last = True
            whole = sending.done() and sending.result()
            sending.cancel()
        if last or not whole:
            self.upstream.drop()
        return whole

    async def _send(self, head: Head, client: StreamReader, frontend: StreamWriter) -> bool:
        """Whether the whole body could be sent."""
        try:
            async for piece in body(client, head):
                if head.chunked:
                    piece = b"%x\r\n%b\r\n" % (len(piece), piece)
                frontend.write(piece)
                await frontend.drain()
            frontend.write(b"0\r\n\r\n" if head.chunked else b"")
        except (OSError, IncompleteReadError, UnreadableError, asyncio.LimitOverrunError):
            return False
        return True

    async def _answer(self, asked: Head, writer: StreamWriter) -> bool:
        """Pass one answer on; whether it was the connection's last."""
        reader = self.upstream.reader
        while (answer := await read_head(reader)).start.split(b" ")[1:2] == [b"100"]:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        status = answer.start.split(b" ")[1:2]
        self.upstream.switched += status == [b"101"]
        lines = [answer.start, *(b"%b: %b" % each for each in answer.headers)]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
        if not asked.start.startswith(b"HEAD ") and status not in ([b"204"], [b"304"]):
            async for piece in body(reader, answer):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.chunked else piece)
            writer.write(b"0\r\n\r\n" if answer.chunked else b"")
        await writer.drain()
        return status == [b"101"] or b"close" in answer.get(b"connection").lower()


@asynccontextmanager
async def lenient_proxying(port: int, folder: Path) -> AsyncIterator[Path]:
    """The socket of such a proxy before the frontend at `port`."""
    proxy = LenientProxy(port)
    server = await asyncio.start_unix_server(proxy.accept, folder / "socket")
    try:
        yield folder / "socket"
        assert proxy.upstream.switched == 0
    finally:
        server.close()
        with contextlib.suppress(asyncio.CancelledError):
            await proxy.close()
