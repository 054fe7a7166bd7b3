"""What operators and their machines ask a component: `/metrics`, `/started`, `/live` and `/ready`,
and of a router what it knows of requests and workers.

One small HTTP server on an address of its own, in a thread of its own: it answers while the
component's event loop is busy, and says so when that loop hangs. Nothing else is served there, and
nothing can be changed by it.

- `/started`: 200 once the component has started. Until then, leave it the time that it may take.
- `/live`: 200 while the event loop answers and the component is alive. Restart it otherwise.
- `/ready`: 200 while it takes work. Send it nothing otherwise.
- `/metrics`: Prometheus text, or OpenMetrics, which carries exemplars, for those who accept that.
- `/debug/...`: documents of the component, as JSON, made on its event loop.

Every request is bounded in time, bytes and number, so a slow or hostile client costs nobody else.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, gzip_accepted

from tandem import sockets

T = TypeVar("T")
PROBE_SECONDS = 2.0
"""For the event loop to answer a probe."""
SCRAPE_SECONDS = 5.0
"""For the event loop to answer a scrape; past it the scrape fails, and that is the news."""
REQUEST_SECONDS = 10.0
"""From a client's connection to its end."""
MAX_HEAD_BYTES = 8 * 1024
_MAY_BE_UNREAD = (HTTPStatus.BAD_REQUEST, HTTPStatus.METHOD_NOT_ALLOWED)
"""Answers to what has more to come than was read."""
MAX_CONNECTIONS = 64
"""One more costs the oldest: a probe comes through also where others hold all of them open."""


def from_loop(loop: asyncio.AbstractEventLoop, read: Callable[[], T]) -> Callable[[], T]:
    """`read` for a scrape: it runs on the loop, where what it reads cannot change under it."""

    async def answer() -> T:
        return read()

    def ask() -> T:
        return asyncio.run_coroutine_threadsafe(answer(), loop).result(SCRAPE_SECONDS)

    return ask


def scrape(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All metrics, in the format that the header `accept` asks for, and its content type. For a
    thread: collectors may wait for the event loop, and TimeoutError is raised where that hangs.
    """
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class Document(NamedTuple):
    """What a component says of itself: JSON, and whether it could."""

    status: HTTPStatus
    body: bytes


class _Answer(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    more: tuple[str, ...] = ()
    """Further header lines."""


class Admin:
    """The server of one component, for the event loop in which it is made."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        ready: Callable[[], bool],
        live: Callable[[], bool] = lambda: True,
        started: Callable[[], bool] = lambda: True,
        documents: Mapping[str, Callable[[str], Document]] | None = None,
    ) -> None:
        """The probes and `documents` are called on the component's loop. A document is named
        by its path; one whose path ends in a slash is told what follows there.
        """
        self._registry = registry
        self._probes = {"/started": started, "/live": live, "/ready": ready}
        self._documents = documents or {}
        self._component = asyncio.get_running_loop()
        self._open: dict[asyncio.Task[None], None] = {}
        """One for each connection, the oldest first."""
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._renderer: ThreadPoolExecutor

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[int]:
        """Serve on "host:port" (port 0: any) within the block, which is told the port.

        Raises ConfigError.
        """
        listener = sockets.listen(address, setting="metrics_listen")
        port = int(listener.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._renderer = ThreadPoolExecutor(1, "admin-metrics")
        thread = threading.Thread(target=self._run, args=(listener,), name="admin", daemon=True)
        thread.start()
        try:
            yield port
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(thread.join, REQUEST_SECONDS)

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self, listener: socket.socket) -> None:
        with self._renderer, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._connected, sock=listener, limit=MAX_HEAD_BYTES)
        await self._stop.wait()
        self._loop.remove_reader(listener)  # asyncio leaks what it accepts for a closed server
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # some still accept
            for task in self._open:
                task.cancel()
            await asyncio.wait(others)
        server.close()
        await asyncio.sleep(0)  # a transport closes a turn after it is told to

    def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Not awaited by asyncio, which writes a traceback for a connection that is cancelled."""
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        task = self._loop.create_task(self._serve_in_time(reader, writer))
        self._open[task] = None
        task.add_done_callback(lambda _: self._closed(task, writer))

    def _closed(self, task: asyncio.Task[None], writer: StreamWriter) -> None:
        self._open.pop(task, None)
        writer.transport.abort()

    async def _serve_in_time(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._serve_one(reader, writer)
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is too slow, or gone: nobody is left to be told

    async def _serve_one(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One request, one answer, and the end of the connection."""
        try:
            method, path, headers = _parse(await reader.readuntil(b"\r\n\r\n"))
        except (ValueError, asyncio.LimitOverrunError):
            method, answer = "GET", _text(HTTPStatus.BAD_REQUEST)
        else:
            answer = await self._answer(method, path, headers)
        writer.write(_head(answer))
        if method != "HEAD":
            writer.write(answer.body)
        if answer.status in _MAY_BE_UNREAD:
            writer.write_eof()
            while await reader.read(MAX_HEAD_BYTES):  # else the kernel takes the answer back too
                pass
        writer.close()
        await writer.wait_closed()

    async def _answer(self, method: str, path: str, headers: Mapping[str, str]) -> _Answer:
        probe = self._probes.get(path)
        document = self._document(path)
        if probe is None and document is None and path != "/metrics":
            return self._nothing_here()
        if method not in ("GET", "HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "allow: GET, HEAD")
        try:
            if document is not None:
                return _json(await self._ask(document))
            if probe is None:
                return await self._loop.run_in_executor(self._renderer, self._scrape, headers)
            holds = await self._ask(probe)
        except TimeoutError:
            return _Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"the event loop does not answer\n")
        return _text(HTTPStatus.OK if holds else HTTPStatus.SERVICE_UNAVAILABLE)

    def _nothing_here(self) -> _Answer:
        known = ", ".join(
            f"{path}..." if path.endswith("/") else path
            for path in sorted({*self._probes, *self._documents, "/metrics"})
        )
        return _Answer(HTTPStatus.NOT_FOUND, f"Not Found; there is {known}\n".encode())

    def _document(self, path: str) -> Callable[[], Document] | None:
        folder, slash, name = path.rpartition("/")
        if make := self._documents.get(folder + slash):
            return partial(make, name)
        make = self._documents.get(path)
        return make and partial(make, "")

    async def _ask(self, probe: Callable[[], T]) -> T:
        """Raises TimeoutError while the component's loop hangs."""

        async def answer() -> T:
            return probe()

        asked = asyncio.run_coroutine_threadsafe(answer(), self._component)
        async with asyncio.timeout(PROBE_SECONDS):
            return await asyncio.wrap_future(asked)

    def _scrape(self, headers: Mapping[str, str]) -> _Answer:
        """Raises TimeoutError where a collector asks a loop that hangs."""
        body, content_type = scrape(self._registry, headers.get("accept", ""))
        if not gzip_accepted(headers.get("accept-encoding", "")):
            return _Answer(HTTPStatus.OK, body, content_type)
        return _Answer(
            HTTPStatus.OK, gzip.compress(body), content_type, ("content-encoding: gzip",)
        )


def _parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path, and headers by lower-case name. Raises ValueError for what is not HTTP."""
    request, *lines = head.decode("latin-1").rstrip().split("\r\n")
    method, target, version = request.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    return method, target.partition("?")[0], headers


def _json(document: Document) -> _Answer:
    return _Answer(document.status, document.body, "application/json")


def _text(status: HTTPStatus, *more: str) -> _Answer:
    return _Answer(status, f"{status.phrase}\n".encode(), more=more)


def _head(answer: _Answer) -> bytes:
    lines = (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"content-type: {answer.content_type}",
        f"content-length: {len(answer.body)}",
        *answer.more,
        "connection: close",
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()
