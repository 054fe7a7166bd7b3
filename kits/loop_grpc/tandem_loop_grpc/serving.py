"""One call at the listening end: what its servicer knows of it, and the way from its headers to its
status.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from google.protobuf.message import DecodeError

from tandem_loop_grpc import headers
from tandem_loop_grpc.headers import Metadata, Status
from tandem_loop_grpc.stream import Stream, StreamError

if TYPE_CHECKING:
    from tandem_loop_grpc.server import Listener, Served

log = logging.getLogger(__name__)

_OK: Final[Status] = (grpc.StatusCode.OK, "", ())

_NO_MORE: Final = object()


class AbortError(Exception):
    """A servicer ends its call with this status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status[1])
        self.status = status


class Context:
    """What a servicer knows of its call, and does beside answering, by grpc.aio's names."""

    def __init__(self, stream: Stream, connection: Served, metadata: Metadata) -> None:
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
        """Wait until everything that was put has left."""
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


class ServedCall:
    """One call, from its headers to its status."""

    def __init__(self, listener: Listener, connection: Served, stream: Stream) -> None:
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
            stream.give_up(StreamError(grpc.StatusCode.UNAVAILABLE, "the server ended the call"))
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
            return code.UNIMPLEMENTED, f"there is no method {self._method[:200]}", ()
        except Exception as error:
            if deadline.expired():
                return code.DEADLINE_EXCEEDED, "the call's time was over", ()
            log.exception("a servicer failed", extra={"peer": self._connection.peer})
            return code.UNKNOWN, f"the servicer raised {type(error).__name__}", ()
        return _OK

    async def _serve(self, deadline: asyncio.Timeout) -> None:
        context, said = self._context, self._stream.headers
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
            unknown = f"there is no method {self._method[:200]}"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, unknown)
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
        """The one request: the call ends with it."""
        code = grpc.StatusCode.INTERNAL
        try:
            found = [message async for message in _first(requests, 2)]
        except DecodeError:
            await self._context.abort(code, "the request cannot be read")
        if len(found) != 1:
            await self._context.abort(code, f"the call brought {len(found) or 'no'} requests")
        return found[0]


async def _first(messages: AsyncIterator[Any], most: int) -> AsyncIterator[Any]:
    """The first `most` messages, or fewer."""
    for _ in range(most):
        if (message := await anext(messages, _NO_MORE)) is _NO_MORE:
            return
        yield message


async def _cancelled() -> None:
    """The call is over, so its task is being cancelled, and what it has begun with it."""
    await asyncio.get_running_loop().create_future()


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Callable[[Any, Any], Any]:
    kinds = handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream
    (found,) = filter(None, kinds)
    return found


async def refuse(stream: Stream, http: int, reason: str) -> None:
    """Answer what is no call of gRPC as HTTP does, once it has ended."""
    try:
        await stream.read()
        stream.send_headers(headers.of_page(http))
        stream.put_page(reason.encode())
        await stream.flushed()
        stream.end()
        stream.forget()
    except (StreamError, asyncio.CancelledError):
        return  # it was reset, or the server stops
