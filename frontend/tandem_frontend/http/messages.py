"""One HTTP request over ASGI: its headers and body, and a way to answer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from typing import Any

from tandem import ids
from tandem.byte_budget import Allotment
from tandem.errors import CancelledError, TooLargeError
from tandem.keys.grant import Grant
from tandem_frontend.http.call_story import CallTimes
from tandem_frontend.http.connection import EXTENSION, Connection
from tandem_frontend.http.errors import ReceiveTimeoutError
from tandem_frontend.http.spans import CallSpan
from tandem_frontend.tenants import Tenant

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Coroutine[Any, Any, None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
_UNCLEAN = re.compile(rb"[^!-~]+")
_LONGEST_REQUEST_ID = 128
_PIECE_BYTES = 256 * 1024
"""What is written to a socket at once."""
_STREAM: Headers = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
_IN_CHUNKS: Headers = (*_STREAM, (b"transfer-encoding", b"chunked"))
_TO_THE_END: Headers = (*_STREAM, (b"connection", b"close"))


class Call:
    """A request, from its head to the end of its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, trust_traceparent: bool = False
    ) -> None:
        """`trust_traceparent`: the client's trace goes on here."""
        self._scope, self._receive, self._send = scope, receive, send
        self._headers = dict(reversed(scope["headers"]))
        self.connection: Connection = scope["extensions"][EXTENSION]
        self.allotment: Allotment
        """The bytes that are held for its body and its prompts; set before its body is read."""
        self.times = CallTimes()
        self.started = False
        """The status line has been sent."""
        self.headers: Headers = ()
        self.id = ids.new_trace_id()
        """What the answer is called; it is never a client's."""
        traceparent = self.header(b"traceparent")
        self.client_span = (
            ids.traceparent_from(traceparent.decode("latin-1")) if traceparent else None
        )
        """What the client says of its own span."""
        self.parent = self.client_span if trust_traceparent else None
        self.trace_id = self.parent.trace_id if self.parent else self.id
        self.client_request_id = _cleaned(self.header(b"x-request-id"))
        """What the client calls the request: for its eyes and the log. Empty: nothing."""
        self.span: CallSpan | None = None
        """None: it is not traced."""
        self.grant: Grant | None = None
        """Belongs to the key that it came with; None: no key was asked."""
        self.tenant: Tenant | None = None
        """The holder of its key, once it was let in; None: no key was asked."""

    @property
    def method(self) -> str:
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        return str(self._scope["path"])

    def header(self, name: bytes) -> bytes | None:
        """The first header of a lower-case name."""
        return self._headers.get(name)

    def has_header(self, names: Set[bytes]) -> bool:
        return not self._headers.keys().isdisjoint(names)

    async def body(self, most: int | None = None) -> bytes:
        """All of the body. `most`: bytes that its endpoint takes; None: as many as any.

        Raises TooLargeError before reading a body that says it is too large, and as soon as one has
        grown so; QueueFullError where there is no memory for it; ReceiveTimeoutError,
        and CancelledError where the client goes away first.
        """
        bounds = self.connection.bounds
        limit = bounds.max_body_bytes if most is None else min(most, bounds.max_body_bytes)
        declared = self.header(b"content-length") or b""
        if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
            raise _too_large(limit)
        if self.connection.request_is_whole:
            return await self._read(limit)
        try:
            async with asyncio.timeout(bounds.receive_timeout_seconds):
                return await self._read(limit)
        except TimeoutError:
            raise ReceiveTimeoutError("The body did not arrive in time") from None

    async def _read(self, limit: int) -> bytes:
        parts, size = [], 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CancelledError("The client went away")
            parts.append(message["body"])
            size += len(message["body"])
            if size > limit:
                raise _too_large(limit)
            self.allotment.admit(len(message["body"]))
            if not message["more_body"]:
                self.times.came, self.times.body_bytes = time.monotonic(), size
                return b"".join(parts)

    async def respond(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        pieces = [body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)]
        await self.respond_in_pieces(status, pieces or [body], content_type, headers)

    async def respond_in_pieces(
        self,
        status: int,
        pieces: Sequence[bytes],
        content_type: bytes = JSON,
        headers: Headers = (),
    ) -> None:
        """Waits while the client's socket is full; others have their turn between pieces."""
        headers = (*headers, (b"content-length", b"%d" % sum(map(len, pieces))))
        await self._send(self._head(status, content_type, headers))
        for piece in pieces[:-1]:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await self._send({"type": "http.response.body", "body": pieces[-1], "more_body": False})

    async def respond_empty(self, headers: Headers) -> None:
        self.started = True
        headers = [*headers, *self.headers]
        await self._send({"type": "http.response.start", "status": 204, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def begin_stream(self, events: bytes) -> None:
        """Send the head and the first events at once. Never waits: ask `connection.writable`."""
        head = self._send(self._stream_head())
        self.connection.start_chunks(head, events)

    async def send_events(self, events: bytes) -> None:
        """Send a part of a stream; waits for a full socket, and lets others have their turn."""
        if not self.started:
            await self._send(self._stream_head())
        self.connection.announce(len(events))
        await self._send({"type": "http.response.body", "body": events, "more_body": True})
        await asyncio.sleep(0)

    async def end_stream(self, events: bytes) -> None:
        """The stream's last part; waits while the client's socket is full."""
        if not self.started:
            await self._send(self._stream_head())
        self.connection.announce(len(events))
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    def _stream_head(self) -> Message:
        in_chunks = self.connection.begins_in_chunks()
        return self._head(200, EVENTS, _IN_CHUNKS if in_chunks else _TO_THE_END)

    def _head(self, status: int, content_type: bytes, more: Headers) -> Message:
        self.started = True
        trace_id = self.trace_id.encode()
        headers = [
            (b"content-type", content_type),
            (b"x-request-id", self.client_request_id.encode() or trace_id),
            (b"x-tandem-trace-id", trace_id),
            *self.headers,
            *more,
        ]
        if self.connection.answers_last:
            headers.append((b"connection", b"close"))
        return {"type": "http.response.start", "status": status, "headers": headers}


def _cleaned(request_id: bytes | None) -> str:
    """Only what can do no harm in a header or a log, and not too much of it."""
    return _UNCLEAN.sub(b"", request_id or b"")[:_LONGEST_REQUEST_ID].decode()


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The body must not be larger than {limit} bytes")
