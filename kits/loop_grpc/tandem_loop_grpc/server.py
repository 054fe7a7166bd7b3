"""The listening end: it takes servicers as grpc.aio's server does, and serves their calls."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final

import grpc

from tandem_loop_grpc import frames, headers, validity
from tandem_loop_grpc.budget import UnreadBudget
from tandem_loop_grpc.connection import PeerConnection
from tandem_loop_grpc.connections import ConnectionCount, ConnectionLimits, Lifetime
from tandem_loop_grpc.frames import PREFACE, Code, ProtocolError
from tandem_loop_grpc.headers import Headers, Status
from tandem_loop_grpc.serving import Context, ServedCall, refuse
from tandem_loop_grpc.stream import Stream, StreamError

_ALPN: Final = "h2"
MOST_CALLS: Final = 100
"""How many calls a client may have open on one connection; others are refused."""
_GREETING_SECONDS: Final = 10.0
"""For TLS, and for HTTP/2's preface after it."""
_RETIRING_SECONDS: Final = 5.0
"""For a client to learn that its connection takes no more calls; those that come meanwhile are."""
_TURNS_OF_ACCEPTING: Final = 4
_ENDING_SECONDS: Final = 5.0
"""For handlers that were cancelled."""
Admit = Callable[["Context"], Awaitable[None]]
"""Asked before each call; it aborts those that may not be."""
Complain = Callable[[str, ProtocolError], None]
"""Told a client's address, and what the client did that the protocol forbids."""


class Listener:
    """Serves what was added, at one address."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        *,
        admit: Admit | None = None,
        most_bytes: int,
        limits: ConnectionLimits | None = None,
        budget: UnreadBudget | None = None,
        complain: Complain | None = None,
    ) -> None:
        """`most_bytes` of a message that is received. What is received and not read takes of
        `budget`. `complain` is called whenever a connection is closed because its client broke the
        protocol, which strangers can do as often as they like.
        """
        self.admit = admit
        self.most_bytes = most_bytes
        self.connections: set[Served] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.limits = limits or ConnectionLimits()
        self.count = ConnectionCount(self.limits)
        self.budget = budget
        self.stops = False
        self.complain = complain
        self._tls = tls
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._listening: asyncio.Server | None = None

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Generated code adds its methods twice: see the next one."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        for name, handler in handlers.items():
            self._handlers[f"/{service}/{name}"] = handler

    def handler(self, method: str) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(method)

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        unix = listening.family == socket.AF_UNIX
        create: Any = loop.create_unix_server if unix else loop.create_server
        self._listening = await create(
            lambda: Served(self),
            sock=listening,
            ssl=self._tls,
            ssl_handshake_timeout=_GREETING_SECONDS if self._tls else None,
        )

    async def stop(self, grace_seconds: float) -> None:
        """Take no new calls, give open ones so long, and end them."""
        self.stops = True
        if self._listening is not None:
            await _accepted()
            self._listening.close()
        for connection in list(self.connections):
            connection.drain()
        if self.tasks and grace_seconds > 0:
            await asyncio.wait(self.tasks, timeout=grace_seconds)
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ENDING_SECONDS)
        if closing := [each.closed() for each in self.connections]:
            await asyncio.gather(*closing)


class Served(PeerConnection):
    asked: Mapping[int, int] = {**PeerConnection.asked, frames.MAX_CONCURRENT_STREAMS: MOST_CALLS}

    def __init__(self, listener: Listener) -> None:
        super().__init__(most_bytes=listener.most_bytes)
        self.names: tuple[str, ...] = ()
        self.peer = ""
        self._listener = listener
        self._last = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._drains = False
        self._impatience: asyncio.TimerHandle | None = None
        self._retiring: asyncio.TimerHandle | None = None
        self._lifetime = Lifetime(listener.limits, self._retire)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = _peer(self.peername)
        self.names = _names(self.security)
        self._listener.connections.add(self)
        refused = self._listener.count.add(self._counted_as())
        if self._listener.stops:
            self.close(Code.NO_ERROR, "the server stops")
        elif refused:
            self.refuse(ProtocolError(Code.ENHANCE_YOUR_CALM, refused))
        elif self.security is not None and self.security.selected_alpn_protocol() != _ALPN:
            self.refuse(ProtocolError(Code.INADEQUATE_SECURITY, "h2 was not agreed on by ALPN"))
        else:
            loop = asyncio.get_running_loop()
            self._impatience = loop.call_later(
                _GREETING_SECONDS, self.abort, "the peer sent no HTTP/2 preface"
            )
            if (budget := self._listener.budget) is not None:
                self.hold(budget.allotment(self._end_for_room))

    def _counted_as(self) -> tuple[str, tuple[str, ...]]:
        """Whose connection it is: an address, and the names of its certificate."""
        host = self.peername[0] if isinstance(self.peername, tuple) else ""
        return host, self.names

    def _end_for_room(self) -> None:
        reason = "unread messages of the peer take too much memory"
        self.refuse(ProtocolError(Code.ENHANCE_YOUR_CALM, reason))

    def greeting(self, data: bytes) -> int:
        if not data.startswith(PREFACE):
            if PREFACE.startswith(data):
                return -1
            raise ProtocolError(Code.PROTOCOL_ERROR, "the peer does not speak HTTP/2")
        if self._impatience is not None:
            self._impatience.cancel()
        return len(PREFACE)

    def refused(self, error: ProtocolError) -> None:
        if (complain := self._listener.complain) is not None:
            complain(self.peer, error)

    def drain(self) -> None:
        """Refuse new calls, and say so."""
        self._drains = True
        self.control(frames.goaway(self._last, Code.NO_ERROR))

    def _retire(self, reason: str) -> None:
        """Have the client begin its next calls elsewhere, and close once none is open."""
        self.control(frames.goaway(frames.LAST_STREAM, Code.NO_ERROR, reason))
        loop = asyncio.get_running_loop()
        self._retiring = loop.call_later(_RETIRING_SECONDS, self._retired)

    def _retired(self) -> None:
        self.drain()
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._drains and not (self._calls or self._listener.stops):
            self.close(Code.NO_ERROR, "the connection takes no more calls")

    def last_stream(self) -> int:
        return self._last

    def known(self, number: int) -> bool:
        return number % 2 == 1 and number <= self._last

    def headers(self, number: int, headers: Headers | None, ends: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            self._end_requests(stream, headers, ends)
        elif number > self._last and number % 2:
            self._last = number
            self._begin(number, headers, ends)
        elif number in self._closed:
            self.passed_over(number)
            _check_trailers(headers, ends)
        else:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a call of an even or a lower number")

    def _begin(self, number: int, said: Headers | None, ends: bool) -> None:
        """A call. Raises MalformedError and StreamError."""
        if said is not None:
            validity.check_request(said)
        stream = Stream(self, number, most_bytes=self._most_bytes)
        if self._drains or len(self._calls) >= MOST_CALLS:
            self._calm.use()
            self.reset(stream, Code.REFUSED_STREAM)
            return
        self.streams[number] = stream
        if said is None:
            raise StreamError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the call's metadata is large")
        stream.headers = said
        stream.expect(validity.content_length(said))
        if ends:
            stream.receive_end()
        http, reason = headers.refusal(said)
        if http:
            stream.discard()
            self._serve(stream, refuse(stream, http, reason))
        else:
            self._serve(stream, ServedCall(self._listener, self, stream).run())

    def _serve(self, stream: Stream, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(call)
        stream.on_failure = task.cancel
        self._lifetime.begin_call()
        self._calls.add(task)
        self._listener.tasks.add(task)
        task.add_done_callback(self._call_ended)

    def _call_ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._listener.tasks.discard(task)
        if not self.over:
            self._lifetime.end_call()
            self._close_if_done()

    def finish(self, stream: Stream, status: Status) -> None:
        """The call ends so, and all that was written has left."""
        before = () if stream.begun else headers.of_response()
        stream.send_headers([*before, *headers.of_status(status)], ends=True)
        if stream.ended:
            self.forget(stream)
        else:
            self.reset(stream, Code.NO_ERROR)  # as RFC 9113, 8.1 has it

    def fail_stream(self, stream: Stream, error: StreamError) -> None:
        if stream.unsent:  # a status cannot come before the rest of a message
            self.reset(stream, Code.CANCEL)
        else:
            self.finish(stream, (error.code, error.details, error.metadata))
        stream.fail(error)

    def lost(self, reason: str) -> None:
        self._lifetime.stop()
        for timer in (self._impatience, self._retiring):
            if timer is not None:
                timer.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self in self._listener.connections:
            self._listener.connections.discard(self)
            self._listener.count.take_off(self._counted_as())

    def _end_requests(self, stream: Stream, headers: Headers | None, ends: bool) -> None:
        """Headers of a call that has begun are its trailers, of which gRPC needs none."""
        if stream.ended:
            raise ProtocolError(Code.STREAM_CLOSED, "headers of a call that had ended")
        _check_trailers(headers, ends)
        stream.receive_end()


def _check_trailers(headers: Headers | None, ends: bool) -> None:
    """Raises ProtocolError, MalformedError, and StreamError where they are too large."""
    if not ends:
        raise ProtocolError(Code.PROTOCOL_ERROR, "a call begins again")
    if headers is None:
        raise StreamError(grpc.StatusCode.RESOURCE_EXHAUSTED, "the call's trailers are large")
    validity.check_trailers(headers)


async def _accepted() -> None:
    """Let what was accepted become a connection: asyncio's server that is closed meanwhile drops it
    without closing it.
    """
    for _ in range(_TURNS_OF_ACCEPTING):
        await asyncio.sleep(0)


def _peer(name: Any) -> str:
    """The client's address, as grpc.aio writes it."""
    if not isinstance(name, tuple):
        return "unix:"
    host, port = name[:2]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _names(security: ssl.SSLObject | None) -> tuple[str, ...]:
    found = security.getpeercert() if security is not None else None
    alternatives: Any = (found or {}).get("subjectAltName", ())
    return tuple(name for kind, name in alternatives if kind == "DNS")
