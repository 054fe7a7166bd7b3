"""A real HTTP server on a port of its own, for what a guardrail service does and should not do."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOUND = 60.0


@dataclass(frozen=True)
class Request:
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What is answered. `body`: a text as it is, anything else as JSON."""

    status: int = 200
    body: Any = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    after: asyncio.Event | None = None
    """Wait for it before anything is sent."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    trickle: bool = False
    """A byte of the body at a time, without an end."""

    def bytes(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


class GuardrailServer:
    """Answers every request with `reply`, which may be a function of the request."""

    def __init__(self) -> None:
        self.reply: Reply | Callable[[Request], Reply] = Reply()
        self.requests: list[Request] = []
        self.connections = 0
        self.arrived = asyncio.Condition()
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    async def wait_for(self, count: int) -> None:
        """Until so many requests have come."""
        async with asyncio.timeout(BOUND), self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            async with asyncio.timeout(BOUND):
                while await self._answer_one(reader, writer):
                    pass
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(head[0].split(" ")[1], headers, body)
        async with self.arrived:
            self.requests.append(request)
            self.arrived.notify_all()
        reply = self.reply(request) if callable(self.reply) else self.reply
        if reply.after is not None:
            await reply.after.wait()
        return await self._send(reply, writer)

    async def _send(self, reply: Reply, writer: asyncio.StreamWriter) -> bool:
        body = reply.bytes()
        length = 1_000_000 if reply.trickle else len(body)
        headers = {"Content-Type": "application/json", "Content-Length": str(length)}
        lines = [f"HTTP/1.1 {reply.status} Said So"]
        lines += [f"{name}: {value}" for name, value in {**headers, **reply.headers}.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        if reply.trickle:
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        if reply.cut_after is not None:
            writer.write(body[: reply.cut_after])
            await writer.drain()
            return False
        for start in range(0, len(body), 65536):
            writer.write(body[start : start + 65536])
            await writer.drain()
        return True


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that it signed itself, and its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=guard", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    return certificate, key


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[GuardrailServer]:
    """A server until the end of the block; its connections end with it."""
    server = GuardrailServer()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await server.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # asyncio's streams complain about a handler that ends cancelled
        finally:
            tasks.discard(task)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    server.scheme = "https" if tls else "http"
    try:
        yield server
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=BOUND)
        await listening.wait_closed()
