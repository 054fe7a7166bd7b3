"""One HTTP request over ASGI: its headers and body, and a way to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from frontend.http.connection import EXTENSION, Connection, Headers
from frontend.http.errors import ReceiveTimeoutError
from frontend.spans import CallSpan
from tandem import ids
from tandem.errors import CancelledError, TooLargeError

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
_UNBUFFERED: Headers = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


class Call:
    """A request being served."""

    __slots__ = (
        "_receive",
        "_scope",
        "_send",
        "connection",
        "parent",
        "span",
        "started",
        "trace_id",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.connection: Connection = scope["extensions"][EXTENSION]
        self.started = False
        """The status line has been sent."""
        traceparent = self.header(b"traceparent")
        self.parent = ids.traceparent_from(traceparent.decode("latin-1")) if traceparent else None
        """The client's own span, where it says."""
        self.trace_id = self.parent.trace_id if self.parent else ids.new_trace_id()
        self.span: CallSpan | None = None
        """None: it is not traced."""

    @property
    def method(self) -> str:
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        return str(self._scope["path"])

    def header(self, name: bytes) -> bytes | None:
        """The first header of a lower-case name."""
        for key, value in self._scope["headers"]:
            if key == name:
                return bytes(value)
        return None

    async def body(self, *, limit: int, timeout_seconds: float) -> bytes:
        """All of the body.

        Raises TooLargeError before reading a body that says it is too large, and as soon as one has
        grown so; ReceiveTimeoutError, and CancelledError where the client goes away first.
        """
        declared = self.header(b"content-length") or b""
        if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
            raise TooLargeError(f"The body must not be larger than {limit} bytes")
        if self.connection.received:
            return await self._read(limit)
        try:
            async with asyncio.timeout(timeout_seconds):
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
                raise TooLargeError(f"The body must not be larger than {limit} bytes")
            if not message["more_body"]:
                return b"".join(parts)

    async def respond(
        self, status: int, body: bytes, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        self.started = True
        headers = (*headers, (b"content-length", b"%d" % len(body)))
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": self._headers(content_type, headers),
            }
        )
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def stream(self, events: bytes) -> None:
        """A part of a stream of server-sent events. The caller asks `connection.writable` first."""
        if self.started:
            self.connection.write_chunk(events)
        else:
            self.started = True
            self.connection.start_chunks(self._headers(EVENTS, _UNBUFFERED), events)

    async def end_stream(self, events: bytes) -> None:
        """The stream's last part; waits while the client's socket is full."""
        if not self.started:
            self.stream(events)
            events = b""
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    def _headers(self, content_type: bytes, more: Headers) -> Headers:
        trace_id = self.trace_id.encode()
        return [
            (b"content-type", content_type),
            (b"x-request-id", trace_id),
            (b"x-tandem-trace-id", trace_id),
            *more,
        ]
