"""uvicorn's HTTP/1.1 connection, with bounds on what one client may cost, and with news of its
going.

uvicorn bounds neither the size of a head nor the time to send one nor how many requests are sent
ahead, loses answers to clients that are still sending, and closes a connection politely even when
its peer reads nothing, which then never happens. parsing.py reads the requests. They and their
answers go through ASGI; docs/design/0005-the-http-layer.md lists the parts of uvicorn that are used
beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tandem.byte_budget import Allotment, ByteBudget
from tandem.errors import RefusedError, TandemError
from tandem_frontend.config import FrontendConfig
from tandem_frontend.http import errors
from tandem_frontend.http.closing import LingeringClose
from tandem_frontend.http.draining import Draining
from tandem_frontend.http.errors import ReceiveTimeoutError, TooManyConnectionsError
from tandem_frontend.http.parsing import RequestParser

_BUFFER_BYTES = 64 * 1024
"""What may wait for a full socket; under TLS event loops would let half a megabyte wait."""
KERNEL_BYTES = 64 * 1024
"""What the kernel keeps for a full socket beside that: server.py sees to it."""
_AHEAD_BYTES = 64 * 1024
"""What may be received behind a request that has no answer yet."""
_TURN_BYTES = 32 * 1024
"""How much of one connection is read in a turn of the event loop."""
_PIECE_COST = 1024
"""What a piece counts for in that, however small it is."""
_REFUSED_AT_ONCE = 256
"""Connections beyond the most that are taken, which are told so; further ones are just closed."""
EXTENSION = "tandem.connection"
"""The key of this object in an ASGI scope's `extensions`."""


_CHUNK = b"%x\r\n%b\r\n"
"""A part of a stream, in HTTP/1.1: its size and itself."""


class _UvicornsTransport:
    """What uvicorn is given as its transport: it can hold what is written to it, is closed so that
    its client can read that, and only tells the connection when uvicorn wants reading to rest.
    uvicorn resumes reading after each answer, whatever waits unread.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        close: Callable[[], None],
        want_body: Callable[[bool], None],
    ) -> None:
        self._transport = transport
        self._closed = False
        self._close = close
        self._want_body = want_body
        self.write: Callable[[bytes], object] = transport.write

    def pause_reading(self) -> None:
        self._want_body(False)

    def resume_reading(self) -> None:
        self._want_body(True)

    def is_closing(self) -> bool:
        return self._closed or self._transport.is_closing()

    def close(self) -> None:
        if not self.is_closing():
            self._closed = True
            self.write = _drop
            self._close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _drop(data: bytes) -> None:
    """Nothing is sent behind a last answer."""


class Connection(HttpToolsProtocol):
    """One client connection; serves one request after another."""

    __slots__ = ("_chunks", "_socket", "writable")

    def __init__(
        self,
        *,
        bounds: FrontendConfig,
        budget: ByteBudget,
        draining: Draining,
        on_refused: Callable[[TandemError, str], object] = lambda error, peer: None,
        **uvicorn_arguments: Any,
    ) -> None:
        """`bounds`: the settings, which limit each client. `budget`: what was received and not used
        yet takes of it, and what waits for a full socket. `on_refused` is told what was answered
        below HTTP's request level, and to which host.
        """
        super().__init__(**uvicorn_arguments)
        self.bounds = bounds
        self._budget = budget
        self._received = budget.allotment()
        """What the parser keeps."""
        self._unread: Allotment | None = None
        """What a full socket keeps waiting."""
        self.parser = RequestParser(self, max_header_bytes=bounds.max_header_bytes)
        self._draining = draining
        self._on_refused = on_refused
        self.opened_at = self._used_at = self.loop.time()
        self._socket: asyncio.Transport
        """The transport itself, while `transport` is what uvicorn writes to."""
        self._answering = False
        """A head has been read, and its answer is not complete."""
        self._chunks = True
        """Whether the client reads chunks: one of HTTP/1.0 does not."""
        self._reading_on: asyncio.Handle | None = None
        self._body_wanted = True
        """uvicorn takes more of a body: its request has taken what came before."""
        self._paused = False
        """The socket is not read."""
        self._refused = False
        """Answered below HTTP's request level."""
        self._closing: LingeringClose | None = None
        self.writable = True
        """Whether the socket has room."""
        self._full_since = 0.0
        self._full_seconds = 0.0
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
        else:
            self.flow.resume_reading()  # else the end of the stream is not seen

    def start_chunks(self, send_head: Coroutine[Any, Any, None], body: bytes) -> None:
        """Send an answer's head and first part in one write. Never waits: ask `writable` first."""
        held: list[bytes] = []
        self.transport.write = held.append  # type: ignore[method-assign, assignment]
        try:
            send_head.send(None)
        except StopIteration:
            held.append(_CHUNK % (len(body), body) if self._chunks else body)
        else:
            raise RuntimeError("the HTTP server waits although the socket has room")
        finally:
            self.transport.write = self._socket.write  # type: ignore[method-assign]
            if not self._socket.is_closing():
                self._socket.write(b"".join(held))

    def write_chunk(self, body: bytes) -> None:
        """Write a part of a stream. ASGI's `send` costs half as much as all else for a token."""
        if not self._socket.is_closing():
            self._socket.write(_CHUNK % (len(body), body) if self._chunks else body)

    def begins_in_chunks(self) -> bool:
        """How the stream goes that begins now: in chunks, or as it is, up to the connection's end.
        Of that uvicorn knows nothing: it is told that there is a length.
        """
        if not self._chunks:
            self.cycle.chunked_encoding = False
        return self._chunks

    @property
    def full_seconds(self) -> float:
        """For how long the socket has been full since the connection was opened."""
        full = 0.0 if self.writable else self.loop.time() - self._full_since
        return self._full_seconds + full

    def announce(self, size: int) -> None:
        """`size` more bytes of a stream go by ASGI: uvicorn counts what is not in chunks."""
        if not self._chunks:
            self.cycle.expected_content_length += size

    @property
    def peer(self) -> str:
        return self.client[0] if self.client else "unknown"

    def abort(self) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self._closing is None:  # else it was answered already, and is on its way out
            self._socket.abort()

    @property
    def request_is_whole(self) -> bool:
        return not self.cycle.more_body

    # --- while the process drains ---

    def cut(self) -> None:
        """Close at once, whatever it still waits for: the process ends."""
        self._socket.abort()

    def check_opened_in_time(self) -> None:
        """Raises DrainingError for a connection that was opened too late in a drain."""
        if self._draining.refuses(self):
            raise self._draining.error()

    @property
    def answers_last(self) -> bool:
        """Whether the answer that begins now is its last. It is where the request has not come
        whole: nobody will read the rest. And where the client has gone, and nobody reads it.
        """
        if self.transport.is_closing() or self.parser is None:
            return True
        return self.parser.expects_more or (self._draining.began and not self.parser.unread)

    def unused_seconds(self) -> float:
        """Since its last answer; 0 during one."""
        return 0.0 if self._answering else self.loop.time() - self._used_at

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        given = _UvicornsTransport(transport, self._close, self._want_body)
        super().connection_made(given)  # type: ignore[arg-type]
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        over = len(self.connections) - self.bounds.max_connections
        if over <= 0:
            self._expect_head()
        elif over <= _REFUSED_AT_ONCE:
            self._refuse(TooManyConnectionsError("Too many connections; try again later"))
        else:
            self._on_refused(TooManyConnectionsError("Too many connections"), self.peer)
            self._socket.abort()

    def data_received(self, data: bytes) -> None:
        if self._closing is not None:
            self._closing.drop(len(data))
        elif not self.transport.is_closing():
            self.parser.receive(data)
            self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()
        self._let_go_of_unread()
        self._received.close()
        if self._closing is not None:
            self._closing.over()
        self.parser.stop()
        super().connection_lost(exc)
        if self._on_lost is not None:
            self._on_lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writable, self._full_since = False, self.loop.time()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(
                self.bounds.client_stall_seconds, self._stalled
            )
        self._unread = self._budget.allotment(self._stalled)
        self._unread.grow(self._socket.get_write_buffer_size() + KERNEL_BYTES)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._full_seconds = self.full_seconds
        self.writable = True
        self._let_go_of_unread()
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
        self._chunks = self.parser.get_http_version() != "1.0"
        if not self._chunks:
            self.expect_100_continue = False  # RFC 9110, 10.1.1: no 100 to a client of HTTP/1.0
        super().on_headers_complete()
        self._answering = True

    def on_response_complete(self) -> None:
        self._on_lost = self._on_stall = self.on_writable = None
        self._answering = False
        self._used_at = self.loop.time()
        super().on_response_complete()
        if self.parser is not None and self.parser.unread:
            self._read_on()

    # --- inside ---

    def _read(self) -> None:
        """Read a request on, for a bounded part of a turn; the next one waits for its answer."""
        self._reading_on = None
        if self.transport.is_closing():
            return
        left = _TURN_BYTES
        try:
            while left > 0 and self._may_read():
                self._unset_keepalive_if_required()
                left -= self.parser.read() + _PIECE_COST
            self._count_received()
        except TandemError as error:
            self._refuse(error)
            return
        if not self._answering and self._head_timer is None and left < _TURN_BYTES:
            self._expect_head()  # a part of one has come
        if left <= 0 and self._may_read():
            self._read_on()
        self._read_socket()

    def _may_read(self) -> bool:
        if self.transport.is_closing() or not self.parser.unread:
            return False
        return self._body_wanted if self.parser.expects_more else not self._answering

    def _read_on(self) -> None:
        """In the loop's next turn."""
        if self._reading_on is None:
            self._reading_on = self.loop.call_soon(self._read)

    def _count_received(self) -> None:
        """Raises QueueFullError where there is no memory for what came."""
        more = self.parser.kept - self._received.size
        if more > 0:
            self._received.admit(more)
        elif more < 0:
            self._received.give_back(-more)

    def _want_body(self, wanted: bool) -> None:
        """uvicorn's flow control says whether more of a body may come."""
        self._body_wanted = wanted
        if wanted and self._may_read():
            self._read_on()
        self._read_socket()

    def _read_socket(self) -> None:
        """Read the socket or let it rest. Nothing else decides that."""
        paused = not self._body_wanted or self.parser.unread > _AHEAD_BYTES
        if paused != self._paused and not self.transport.is_closing():
            self._paused = paused
            if paused:
                self._socket.pause_reading()
            else:
                self._socket.resume_reading()

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(
            self.bounds.receive_timeout_seconds,
            self._refuse,
            ReceiveTimeoutError("The request's head did not arrive in time"),
        )

    def _refuse(self, error: TandemError) -> None:
        """Answer below HTTP's request level, and close."""
        self._stop_head_timer()
        if self.transport.is_closing():
            return
        if self._answering and self.cycle.response_started:
            self.abort()  # a second answer would be taken for a part of the first
            return
        body = errors.body(error)
        again = b"retry-after: 1\r\n" if isinstance(error, RefusedError) else b""
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b"
            b"connection: close\r\n\r\n%b" % (error.http_status, len(body), again, body)
        )
        self._refused = True
        self._on_refused(error, self.peer)
        self.transport.close()
        if self._answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _close(self) -> None:
        """Behind a last answer. Where the client is still sending it is to be read first; and a
        transport waits for its peer to read what is buffered, but not for ever.
        """
        self._stop_head_timer()
        if self._refused or self.parser.expects_more or self.parser.unread:
            self._closing = LingeringClose(self._socket, self.loop)
        else:
            self._socket.close()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(
                self.bounds.client_stall_seconds, self._socket.abort
            )

    def _let_go_of_unread(self) -> None:
        if self._unread is not None:
            self._unread.close()
            self._unread = None

    def _stalled(self) -> None:
        """The client does not read for too long, or there is no memory for what it leaves."""
        self._stop_stall_timer()
        if self._on_stall is not None:
            self._on_stall()
        self._socket.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
