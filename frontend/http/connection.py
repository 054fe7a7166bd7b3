"""uvicorn's HTTP/1.1 connection, with bounds on what one client may cost, and with news of its
going.

uvicorn bounds neither the size of a head nor the time to send one, and closes a connection politely
even when its peer reads nothing, which then never happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from frontend.http import errors as http_errors
from frontend.http.draining import Draining
from frontend.http.errors import HeadTooLargeError, ReceiveTimeoutError
from tandem.errors import InvalidRequestError, TandemError

Headers = Sequence[tuple[bytes, bytes]]

_BUFFER_BYTES = 64 * 1024
"""What may wait for a full socket; under TLS event loops would let half a megabyte wait."""
EXTENSION = "tandem.connection"
"""The key of this object in an ASGI scope's `extensions`."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ConnectionBounds:
    max_header_bytes: int
    receive_timeout_seconds: float
    client_stall_seconds: float


class Connection(HttpToolsProtocol):
    """One client connection; serves one request after another."""

    def __init__(
        self, *, bounds: ConnectionBounds, draining: Draining, **uvicorn_arguments: Any
    ) -> None:
        super().__init__(**uvicorn_arguments)
        self._bounds = bounds
        self._draining = draining
        self.opened_at = self._used_at = self.loop.time()
        self._served: RequestResponseCycle
        """Of pipelined requests `cycle` is the last, and this the first that is not complete."""
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.on_writable: Callable[[], object] | None = None
        """Called when a full socket has room again; for the request being served."""
        self._on_lost: Callable[[], object] | None = None
        self._on_stall: Callable[[], object] | None = None

    # --- for the request being served ---

    def watch(self, *, on_lost: Callable[[], object], on_stall: Callable[[], object]) -> None:
        """Until the response is complete: call `on_lost` when the client goes away, which is also
        noticed while nothing is written, and `on_stall` when it leaves its socket unread for too
        long, just before the connection is closed.
        """
        self._on_lost, self._on_stall = on_lost, on_stall
        if self.transport.is_closing():
            on_lost()
        elif not self.pipeline:
            self.flow.resume_reading()  # else the end of the stream is not seen

    @property
    def received(self) -> bool:
        """Whether all of the request is here, its body included."""
        cycle: RequestResponseCycle = self.cycle  # of the newest request: pipelined ones are older
        return not cycle.more_body

    @property
    def writable(self) -> bool:
        return not self.flow.write_paused

    def start_chunks(self, headers: Headers, body: bytes) -> None:
        """The head of a response of unknown length together with the first part of its body: ASGI
        would send two packets. Never waits: the caller asks `writable` first.
        """
        cycle = self._served
        cycle.response_started = cycle.chunked_encoding = True
        lines = [b"%b: %b\r\n" % line for line in (*self.server_state.default_headers, *headers)]
        if not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 200 OK\r\n%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n"
                % (b"".join(lines), len(body), body)
            )

    def write_chunk(self, body: bytes) -> None:
        """A further part. ASGI's `send`, which awaits, costs about as much again as the write
        itself.
        """
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def abort(self) -> None:
        """Close without sending what is still buffered."""
        self.transport.abort()

    # --- while the process drains (draining.Client) ---

    @property
    def refused(self) -> bool:
        """Opened too late: nothing is begun for it."""
        return self._draining.refuses(self)

    def answer_last(self) -> None:
        if self._serving and not self.pipeline and not self._served.response_started:
            self._served.keep_alive = False

    def unused_seconds(self) -> float:
        return 0.0 if self._serving else self.loop.time() - self._used_at

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is None and not self._serving:
            self._expect_head()  # a part of one has come
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self._bounds.max_header_bytes:
                self._refuse(self._head_too_large())

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(
                self._bounds.client_stall_seconds, self._stalled
            )

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_stall_timer()
            if self.on_writable is not None:
                self.on_writable()

    # --- uvicorn's own callbacks ---

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: self}  # type: ignore[dict-item]

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._served = cycle
        if self._draining.began:
            self.answer_last()
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._on_lost = self._on_stall = self.on_writable = None
        self._used_at = self.loop.time()
        super().on_response_complete()
        self._bound_closing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._bound_closing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequestError(msg))

    # --- inside ---

    @property
    def _serving(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def head_too_large(self) -> bool:
        """Whether the request being served came with more headers than allowed, all in one read."""
        size = sum(len(name) + len(value) for name, value in self.headers)
        return size + len(self.url) > self._bounds.max_header_bytes

    def _head_too_large(self) -> TandemError:
        limit = self._bounds.max_header_bytes
        return HeadTooLargeError(f"Request line and headers must not exceed {limit} bytes")

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(
            self._bounds.receive_timeout_seconds,
            self._refuse,
            ReceiveTimeoutError("The request's head did not arrive in time"),
        )

    def _refuse(self, error: TandemError) -> None:
        """Answer below HTTP's request level, and close."""
        self._stop_head_timer()
        if self.transport.is_closing():
            return
        body = http_errors.body(error)
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (error.http_status, len(body), body)
        )
        self.transport.close()
        self._bound_closing()

    def _bound_closing(self) -> None:
        """A closing transport waits for its peer to read what is buffered: not for ever."""
        if self.transport.is_closing() and self._stall_timer is None:
            self._stall_timer = self.loop.call_later(
                self._bounds.client_stall_seconds, self.transport.abort
            )

    def _stalled(self) -> None:
        self._stall_timer = None
        if self._on_stall is not None:
            self._on_stall()
        self.transport.abort()

    def _stop_timers(self) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
