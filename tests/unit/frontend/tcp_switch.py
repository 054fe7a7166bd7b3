"""One address in front of several servers, as a Kubernetes Service is: whoever connects reaches the
server that is chosen at that moment, and stays with it.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TcpSwitch:
    def __init__(self, target: int | None) -> None:
        self.target = target
        """The port for new connections on this machine; None: they are cut off at once."""
        self.address = ""
        self.connections = 0
        self._writers: set[StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Break every connection, as a lost node does."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        self.cut()
        if self._serving:
            await asyncio.wait(self._serving)

    def accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        self.connections += 1
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.target is not None:
                await self._join(reader, writer, self.target)
        except OSError:
            pass  # one of both has gone: so does the other
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: StreamReader, writer: StreamWriter, target: int) -> None:
        there, out = await asyncio.open_connection("127.0.0.1", target)
        self._writers.add(out)
        try:
            async with asyncio.TaskGroup() as group:
                copies = [
                    group.create_task(_copy(*each)) for each in ((reader, out), (there, writer))
                ]
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
                for copy in copies:
                    copy.cancel()
        except* OSError:
            pass
        finally:
            self._writers.discard(out)
            out.transport.abort()


async def _copy(source: StreamReader, sink: StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()


@asynccontextmanager
async def tcp_switch(target: int | None) -> AsyncIterator[TcpSwitch]:
    switch = TcpSwitch(target)
    server = await asyncio.start_server(switch.accept, "127.0.0.1", 0)
    switch.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield switch
    finally:
        server.close()
        for _ in range(3):
            await asyncio.sleep(0)  # what was being accepted is accepted, to be cut too
        await switch.close()
