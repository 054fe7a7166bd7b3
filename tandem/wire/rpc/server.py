"""The listening end: it takes servicers as grpc.aio's server does, and serves their calls."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from tandem.complaints import Complaints
from tandem.wire.bounded import bounded
from tandem.wire.rpc import frames, headers
from tandem.wire.rpc.connection import PeerConnection
from tandem.wire.rpc.frames import PREFACE, Code, ProtocolError
from tandem.wire.rpc.headers import Headers, Metadata, Status
from tandem.wire.rpc.stream import Stream, StreamError

log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 4096
MOST_CALLS: Final = 100
"""That a client may have open on one connection; others are refused."""
_GREETING_SECONDS: Final = 10.0
"""For TLS, and for HTTP/2's preface after it."""
_TURNS_OF_ACCEPTING: Final = 4
_ENDING_SECONDS: Final = 5.0
"""For handlers that were cancelled."""
_OK: Final[Status] = (grpc.StatusCode.OK, "", ())

Admit = Callable[["Context"], Awaitable[None]]
"""Asked before each call; it aborts those that may not be."""


class AbortError(Exception):
    """A servicer ends its call with this status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status[1])
        self.status = status


class Context:
    """What a servicer knows of its call, and does beside answering, by grpc.aio's names."""

    def __init__(self, stream: Stream, connection: _Served, metadata: Metadata) -> None:
        self._stream = stream
        self._connection = connection
        self._metadata = metadata
        self.serialize: Callable[[Any], bytes] = bytes

    def peer(self) -> str:
        """Whose call it is: "ipv4:host:port", or "ipv6:[host]:port"."""
        return self._connection.peer

    def names(self) -> tuple[str, ...]:
        """The DNS names of the client's certificate."""
        return self._connection.names

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    async def write(self, message: Any) -> None:
        """Returns once the next one can be taken."""
        if not self.put(message):
            await self.flushed()

    def put(self, message: Any) -> bool:
        """Write it. Returns whether the next one can be taken; else it can once `flushed` returns,
        which it never does where the call is over.
        """
        if not self._stream.begun:
            self._stream.send_headers(headers.of_response())
        try:
            return self._stream.put(self.serialize(message))
        except StreamError:
            return False

    async def flushed(self) -> None:
        """All that was put has left."""
        try:
            await self._stream.flushed()
        except StreamError:
            await _cancelled()

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        raise AbortError((code, details, trailing_metadata))

    # Of what a service does not have, generated code says so, and raises NotImplementedError.

    def set_code(self, _: grpc.StatusCode) -> None: ...

    def set_details(self, _: str) -> None: ...


class Listener:
    """Serves what was added, at one address."""

    def __init__(
        self, tls: ssl.SSLContext | None, *, admit: Admit | None = None, most_bytes: int
    ) -> None:
        """`most_bytes` of a message that is received."""
        self.admit = admit
        self.most_bytes = most_bytes
        self.connections: set[_Served] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.stops = False
        self.complaints = Complaints(log)
        self._tls = tls
        self._handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
        self._listening: asyncio.Server | None = None

    def add_generic_rpc_handlers(self, _: object) -> None:
        """Generated code adds its methods twice: see the next one."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        for name, handler in handlers.items():
            parse = bounded(handler.request_deserializer, streams=handler.request_streaming)
            self._handlers[f"/{service}/{name}"] = handler._replace(request_deserializer=parse)

    def handler(self, method: str) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(method)

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        unix = listening.family == socket.AF_UNIX
        create: Any = loop.create_unix_server if unix else loop.create_server
        self._listening = await create(
            lambda: _Served(self),
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
        self.complaints.close()


class _Served(PeerConnection):
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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = _peer(self.peername)
        self.names = _names(self.security)
        connections = self._listener.connections
        connections.add(self)
        if self._listener.stops:
            self.close(Code.NO_ERROR, "the server stops")
            return
        if len(connections) > MOST_CONNECTIONS:
            self.close(Code.ENHANCE_YOUR_CALM, "there are too many connections")
            return
        loop = asyncio.get_running_loop()
        self._impatience = loop.call_later(_GREETING_SECONDS, self.abort, "it did not greet")

    def greeting(self, data: bytes) -> int:
        if not data.startswith(PREFACE):
            if PREFACE.startswith(data):
                return -1
            raise ProtocolError(Code.PROTOCOL_ERROR, "it does not speak HTTP/2")
        if self._impatience is not None:
            self._impatience.cancel()
        self._greeted = True
        return len(PREFACE)

    def refused(self, error: ProtocolError) -> None:
        self._listener.complaints.warn(
            "connection ended: it broke the protocol",
            error.code.name,
            peer=self.peer,
            reason=str(error),
        )

    def drain(self) -> None:
        """Refuse new calls, and say so."""
        self._drains = True
        self.control(frames.goaway(self._last, Code.NO_ERROR))

    def last_stream(self) -> int:
        return self._last

    def known(self, number: int) -> bool:
        return number % 2 == 1 and number <= self._last

    def headers(self, number: int, headers: Headers, ends: bool) -> None:
        stream = self.streams.get(number)
        if stream is not None:
            self._end_requests(stream, ends)
            return
        if self.known(number):
            return  # it was given up here
        if number % 2 == 0:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a call of an even number")
        self._last = number
        stream = Stream(self, number, most_bytes=self._most_bytes)
        if self._drains or len(self._calls) >= MOST_CALLS:
            self.reset(stream, Code.REFUSED_STREAM)
            return
        self.streams[number] = stream
        stream.headers = headers
        if ends:
            stream.receive_end()
        serving = _Serving(self._listener, self, stream)
        task = asyncio.get_running_loop().create_task(serving.run())
        stream.on_failure = task.cancel
        for tasks in (self._calls, self._listener.tasks):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

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
            self.finish(stream, (error.code, error.details, ()))
        stream.fail(error)

    def lost(self, reason: str) -> None:
        if self._impatience is not None:
            self._impatience.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._listener.connections.discard(self)

    def _end_requests(self, stream: Stream, ends: bool) -> None:
        """Headers of a call that has begun are its trailers, of which gRPC needs none."""
        if not ends or stream.ended:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a call begins again")
        try:
            stream.receive_end()
        except StreamError as error:
            self.fail_stream(stream, error)


class _Serving:
    """One call, from its headers to its status."""

    def __init__(self, listener: Listener, connection: _Served, stream: Stream) -> None:
        self._listener = listener
        self._connection = connection
        self._stream = stream
        self._method = dict(stream.headers).get(b":path", b"").decode("latin-1")
        self._context = Context(stream, connection, headers.metadata(stream.headers))

    async def run(self) -> None:
        stream = self._stream
        try:
            status = await self._status()
            await stream.flushed()
        except StreamError:
            return
        except asyncio.CancelledError:
            stream.on_failure = None  # it is this task, which ends
            stream.give_up(StreamError(grpc.StatusCode.UNAVAILABLE, "the server ended it"))
        else:
            if not stream.closed:
                self._connection.finish(stream, status)

    async def _status(self) -> Status:
        """Serve it. Returns how it ended."""
        code = grpc.StatusCode
        deadline = asyncio.timeout(None)
        try:
            async with deadline:
                await self._serve(deadline)
        except AbortError as error:
            return error.status
        except NotImplementedError:
            return code.UNIMPLEMENTED, "there is no such method", ()
        except Exception as error:
            if deadline.expired():
                return code.DEADLINE_EXCEEDED, "its time was over", ()
            log.exception("a servicer failed", extra={"peer": self._connection.peer})
            return code.UNKNOWN, f"the servicer raised {type(error).__name__}", ()
        return _OK

    async def _serve(self, deadline: asyncio.Timeout) -> None:
        context, said = self._context, self._stream.headers
        if not headers.is_grpc(said):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "it is no call of gRPC")
        try:
            seconds = headers.timeout(said)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if seconds is not None:
            deadline.reschedule(asyncio.get_running_loop().time() + seconds)
        if self._listener.admit is not None:
            await self._listener.admit(context)
        handler = self._listener.handler(self._method)
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there is no such method")
        context.serialize = handler.response_serializer or bytes
        await self._answer(handler)

    async def _answer(self, handler: grpc.RpcMethodHandler[Any, Any]) -> None:
        context = self._context
        request: Any = self._requests(handler.request_deserializer or bytes)
        if not handler.request_streaming:
            request = await self._only(request)
        answer = _behaviour(handler)(request, context)
        if isinstance(answer, AsyncGenerator):
            async with aclosing(answer) as messages:
                async for message in messages:
                    await context.write(message)
            return
        message = await answer
        if not handler.response_streaming:
            await context.write(message)

    async def _requests(self, parse: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        try:
            while (data := await self._stream.read()) is not None:
                yield parse(data)
        except StreamError:
            await _cancelled()

    async def _only(self, requests: AsyncIterator[Any]) -> Any:
        try:
            return await anext(requests)
        except StopAsyncIteration:
            await self._context.abort(grpc.StatusCode.INTERNAL, "the call brought no request")
        except DecodeError:
            await self._context.abort(grpc.StatusCode.INTERNAL, "the request cannot be read")


async def _accepted() -> None:
    """Let what was accepted become a connection: asyncio's server that is closed meanwhile drops it
    without closing it.
    """
    for _ in range(_TURNS_OF_ACCEPTING):
        await asyncio.sleep(0)


async def _cancelled() -> None:
    """The call is over, so its task is being cancelled, and what it has begun with it."""
    await asyncio.get_running_loop().create_future()


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Callable[[Any, Any], Any]:
    kinds = handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream
    (found,) = filter(None, kinds)
    return found


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
