"""Bytes of clients over real connections to a whole stack with the sim engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fuzzing import requests
from fuzzing.http_text import spoil_http
from fuzzing.stack import sim_stack
from fuzzing.target import FoundError, Target
from tandem.cli.client import Client
from tandem.cli.stack import Stack, StackError

_AT_ONCE = 32
_LAST = b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
"""Behind each input, so that a server which has understood it closes at once."""
_READ_SECONDS = 0.3
"""Then a client goes away without a word: what it sent may be no whole request."""
_LOOK_EVERY = 500
_LIVE_SECONDS = 10.0
_IDLE_SECONDS = 40.0
_POLL_SECONDS = 0.1
_FINE = (b"HTTP/1.1 503", b"HTTP/1.1 504")
"""A full server, and a client that asked for less time than there is."""


class SocketSubject:
    """Many clients at once; what one of them finds is told at a later input."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._pids = self._now()
        host, _, port = stack.components["frontend"].address.rpartition(":")
        self._host, self._port = host, int(port)
        self._clients: set[asyncio.Task[None]] = set()
        self._given = 0

    async def give(self, data: bytes) -> None:
        self._clients.add(asyncio.get_running_loop().create_task(self._client(data)))
        self._given += 1
        if len(self._clients) >= _AT_ONCE or self._given % _LOOK_EVERY == 0:
            await self._some_end()
        if self._given % _LOOK_EVERY == 0:
            await self._look()

    async def left_open(self) -> int:
        """Once all clients are done: what they left is given as long as a request may take."""
        while self._clients:
            await self._some_end()
        deadline = time.monotonic() + _IDLE_SECONDS
        left = self._open()
        while left and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
            left = self._open()
        return int(left)

    async def _client(self, data: bytes) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        answer = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            writer.write(data + _LAST)
            async with asyncio.timeout(_READ_SECONDS):
                while part := await reader.read(1 << 16):
                    answer += part
        writer.transport.abort()
        if answer.startswith(b"HTTP/1.1 5") and not answer.startswith(_FINE):
            raise FoundError("5xx", f"{answer[:16]!r} to {data[:2000]!r}")

    async def _some_end(self) -> None:
        ended, self._clients = await asyncio.wait(
            self._clients, return_when=asyncio.FIRST_COMPLETED
        )
        for client in ended:
            client.result()

    async def _look(self) -> None:
        """Every process is the one that it was, and the frontend answers."""
        async with asyncio.timeout(_LIVE_SECONDS):
            status = await asyncio.to_thread(Client(self._stack.url).status, "/live")
        try:
            self._stack.check_running()
        except StackError as error:
            raise FoundError("crash", str(error)) from error
        if status != 200 or self._now() != self._pids:
            raise FoundError("fault", f"/live answers {status}")

    def _open(self) -> float:
        """Requests and connections at the frontend, and legs at the workers."""
        names = {"frontend": "tandem_frontend_open_requests"}
        names |= {each: "tandem_worker_open_legs" for each in self._stack.components if "_" in each}
        return sum(self._gauge(component, name) for component, name in names.items())

    def _gauge(self, component: str, name: str) -> float:
        address = self._stack.components[component].launch.metrics
        text = Client(address).text("/metrics")
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def _now(self) -> dict[str, int]:
        return {name: each.pid for name, each in self._stack.components.items()}


@contextmanager
def _subject() -> Iterator[SocketSubject]:
    with sim_stack() as stack:
        yield SocketSubject(stack)


SOCKETS = Target(
    name="sockets", goal=50_000, corpus=requests.requests, spoil=spoil_http, subject=_subject
)
