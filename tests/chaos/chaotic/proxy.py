"""A TCP proxy before one component, which cuts, holds, delays and changes what goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

Change = Callable[[bytes], bytes]
_CHUNK = 64 * 1024
_LAST_WORDS_SECONDS = 0.2
"""In which what a component said at its end still comes, when nothing reaches it any longer."""


class Proxy:
    """Listens at once, on a free port; `target` is set once its component has an address."""

    def __init__(self) -> None:
        self.target = ""
        self.delay = 0.0
        """Seconds by which everything comes later, both ways."""
        self.answers: Callable[[], Change] | None = None
        """Makes, for each new connection, what changes the bytes that come back."""
        self._refuses = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self) -> str:
        """The address to dial."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def cut(self) -> None:
        """Reset every connection, and each new one until `restore`."""
        self._refuses = True
        self.reset()

    def reset(self) -> None:
        """Reset every connection; new ones are served."""
        for connection in list(self._connections):
            connection.abort()

    def hold(self) -> None:
        """Let nothing through, and say nothing, until `restore`: as packets that are lost."""
        self._flows.clear()

    def restore(self) -> None:
        """Let everything through again, what was held first."""
        self._refuses, self.delay, self.answers = False, 0.0, None
        self._flows.set()

    def inject(self, garbage: bytes) -> None:
        """Bytes between those of the component, on every connection."""
        for connection in self._connections:
            connection.inject(garbage)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            if self._refuses:
                connection.abort()
            else:
                await self._serve(connection, reader)
        except OSError:
            connection.abort()  # one side has gone, and the other is told
        finally:
            self._connections.discard(connection)
            connection.close()

    async def _serve(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        await self._flows.wait()
        host, _, port = self.target.rpartition(":")
        back, writer = await asyncio.open_connection(host, int(port))
        connection.far = writer
        change = self.answers() if self.answers is not None else None
        there = asyncio.create_task(self._carry(reader, writer, None))
        pipes = [there, asyncio.create_task(self._carry(back, connection.near, change))]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
            if there.done():
                await asyncio.wait(pipes, timeout=_LAST_WORDS_SECONDS)
        finally:
            for pipe in pipes:
                pipe.cancel()
            ended = await asyncio.gather(*pipes, return_exceptions=True)
        for how in ended:
            if isinstance(how, OSError):
                raise how

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Change | None
    ) -> None:
        """Until one side ends or breaks; what had come is delivered."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivery = asyncio.create_task(self._deliver(waiting, writer))
        now = asyncio.get_running_loop().time
        try:
            while data := await reader.read(_CHUNK):
                waiting.put_nowait((now() + self.delay, change(data) if change else data))
            waiting.put_nowait((now() + self.delay, b""))
            await delivery
        finally:
            delivery.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await delivery

    async def _deliver(
        self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await waiting.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self._flows.wait()
            if not data:
                return
            writer.write(data)
            await writer.drain()


class _Connection:
    def __init__(self, near: asyncio.StreamWriter) -> None:
        self.near = near
        self.far: asyncio.StreamWriter | None = None

    def close(self) -> None:
        """What was written is still delivered."""
        for writer in self._writers():
            writer.close()

    def abort(self) -> None:
        for writer in self._writers():
            writer.transport.abort()

    def inject(self, garbage: bytes) -> None:
        with suppress(OSError):
            self.near.write(garbage)

    def _writers(self) -> list[asyncio.StreamWriter]:
        return [writer for writer in (self.near, self.far) if writer is not None]
