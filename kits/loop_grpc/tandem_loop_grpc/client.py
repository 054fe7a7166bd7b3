"""The dialling end: a channel, as generated stubs take it, and its calls."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from tandem_loop_grpc import headers
from tandem_loop_grpc.dialled import Dialled
from tandem_loop_grpc.headers import Headers, Metadata
from tandem_loop_grpc.stream import Stream, StreamError

log = logging.getLogger(__name__)

Codec = Callable[[Any], Any]
Answer = TypeVar("Answer")
UNIX: Final = "unix:"
"""An address that begins so goes on with the path of a socket."""
CONNECT_SECONDS: Final = 5.0
"""For a connection, TLS and all, of whatever a name stands for."""
_MOST_MOVES: Final = 3
"""Connections that a call leaves in a row because they take no more."""
SILENCE_SECONDS: Final = 60.0
"""A process that hangs is waited for so long: its loop may stand still for a while."""


class RpcChannel:
    """Connects on first use, and again when a call finds its connection lost. A call that cannot
    connect fails: whoever makes it knows when to try again.
    """

    def __init__(
        self,
        address: str,
        tls: ssl.SSLContext | None,
        *,
        name: str = "",
        most_bytes: int,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """`address`: "host:port"; `name`: what the server's certificate has to bear; `most_bytes`
        of a message that is received. A server that says nothing for `silence_seconds`, though it
        was asked, is given up.
        """
        self.address = address
        self._tls = tls
        self._name = name
        self._most_bytes = most_bytes
        self._silence_seconds = silence_seconds
        self._connections: list[Dialled] = []
        """The last one takes calls, unless it is lost; the others let theirs end."""
        self._dialling: asyncio.Task[Dialled] | None = None
        self._calls: set[RpcCall] = set()

    async def __aenter__(self) -> RpcChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it, and cancel its calls."""
        for call in list(self._calls):
            call.cancel()
        if (dialling := self._dialling) is not None:
            dialling.cancel()
            await asyncio.wait({dialling})
        closing = [each.closed() for each in self._connections if not each.over]
        await asyncio.gather(*closing)

    def stream_stream(
        self, method: str, request_serializer: Codec, response_deserializer: Codec, **_: Any
    ) -> Callable[..., RpcCall]:
        """Called as generated stubs are, with requests or without: then they are written."""

        def begin(
            requests: AsyncIterator[Any] | None = None,
            *,
            timeout: float | None = None,
            metadata: Metadata = (),
        ) -> RpcCall:
            call = RpcCall(self, request_serializer, response_deserializer, timeout)
            return call.begin(requests, method, metadata)

        return begin

    def unary_stream(
        self, method: str, request_serializer: Codec, response_deserializer: Codec, **_: Any
    ) -> Callable[..., RpcCall]:
        """`stream_stream` with one request."""

        def begin(
            request: Any, *, timeout: float | None = None, metadata: Metadata = ()
        ) -> RpcCall:
            call = RpcCall(self, request_serializer, response_deserializer, timeout)
            return call.begin(_only(request), method, metadata)

        return begin

    def unary_unary(
        self, method: str, request_serializer: Codec, response_deserializer: Codec, **_: Any
    ) -> Callable[..., Awaitable[Any]]:
        """`unary_stream` with one answer."""

        async def ask(
            request: Any, *, timeout: float | None = None, metadata: Metadata = ()
        ) -> Any:
            call = RpcCall(self, request_serializer, response_deserializer, timeout)
            call.begin(_only(request), method, metadata)
            try:
                answer = await call.read()
                if (
                    answer is None
                    or answer is grpc.aio.EOF
                    or await call.read() is not grpc.aio.EOF
                ):
                    raise _failure(grpc.StatusCode.INTERNAL, "the call brought no single answer")
                return answer
            finally:
                call.cancel()

        return ask

    @property
    def connections(self) -> Sequence[Dialled]:
        return self._connections

    async def stream(self, first: Headers) -> Stream:
        """A new call, once its server takes one more. Raises OSError or TimeoutError."""
        connection = await self.connected()
        for _ in range(_MOST_MOVES):
            if await connection.room():
                break
            connection = await self.connected()
        return connection.begin(first)

    async def connected(self) -> Dialled:
        """A connection that takes calls. Raises OSError or TimeoutError."""
        if self._connections and self._connections[-1].accepts:
            return self._connections[-1]
        if self._dialling is None:
            self._dialling = asyncio.get_running_loop().create_task(self._dial())
            self._dialling.add_done_callback(self._dialled)
        return await asyncio.shield(self._dialling)

    def request_headers(self, method: str, timeout: float | None, metadata: Metadata) -> Headers:
        return headers.of_request(
            method,
            self._name or self.address,
            secure=self._tls is not None,
            timeout=timeout,
            metadata=metadata,
        )

    def keep(self, call: RpcCall) -> None:
        self._calls.add(call)

    def drop(self, call: RpcCall) -> None:
        self._calls.discard(call)

    def _dialled(self, dialling: asyncio.Task[Dialled]) -> None:
        self._dialling = None
        if not dialling.cancelled() and dialling.exception() is None:
            self._connections = [each for each in self._connections if not each.over]
            self._connections.append(dialling.result())

    async def _dial(self) -> Dialled:
        """Connect to the first address that answers, of those that a name stands for."""
        async with asyncio.timeout(CONNECT_SECONDS):
            if self.address.startswith(UNIX):
                return await self._connect(path=self.address.removeprefix(UNIX))
            found = await self._look_up()
            failure: OSError = OSError("the name stands for no address")
            for host, port in found:
                try:
                    async with asyncio.timeout(CONNECT_SECONDS / len(found)):
                        return await self._connect(host=host, port=port)
                except TimeoutError:
                    failure = OSError(f"{host} did not answer")
                except OSError as error:
                    failure = error
        raise failure

    async def _look_up(self) -> Sequence[tuple[str, int]]:
        host, _, digits = self.address.rpartition(":")
        port = int(digits)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # of what can be no name, as "a..b"
            raise OSError(str(error)) from error
        return list(dict.fromkeys((str(where[0]), port) for *_, where in found))

    async def _connect(self, **where: Any) -> Dialled:
        loop = asyncio.get_running_loop()
        create: Any = loop.create_unix_connection if "path" in where else loop.create_connection
        name = self._name if self._tls is not None else None
        _, connection = await create(
            lambda: Dialled(most_bytes=self._most_bytes, silence_seconds=self._silence_seconds),
            ssl=self._tls,
            server_hostname=name,
            **where,
        )
        return connection  # type: ignore[no-any-return]


class RpcCall:
    """One call: its answers are read, and its requests written or taken from an iterator."""

    def __init__(
        self, channel: RpcChannel, serialize: Codec, deserialize: Codec, timeout: float | None
    ) -> None:
        self._channel = channel
        self._serialize = serialize
        self._deserialize = deserialize
        self._timeout = timeout
        self._began: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False
        self._over = False

    def begin(
        self, requests: AsyncIterator[Any] | None, method: str, metadata: Metadata
    ) -> RpcCall:
        loop = asyncio.get_running_loop()
        self._channel.keep(self)
        if self._timeout is not None:
            self._timer = loop.call_later(self._timeout, self._expire)
        first = self._channel.request_headers(method, self._timeout, metadata)
        self._task = loop.create_task(self._send(requests, first))
        return self

    async def read(self) -> Any:
        """The next message; grpc.aio.EOF: the call ended well; None for what cannot be read. Raises
        AioRpcError as it ended, and CancelledError once it was cancelled: it is, too, where the
        task that reads is.
        """
        data = await self._from_stream(Stream.read)
        return grpc.aio.EOF if data is None else self._parsed(data)

    async def hand_on(self, take: Callable[[Any], Answer | None]) -> Answer | None:
        """Give each message, or None for what cannot be read, to `take` in the turn of the loop in
        which it comes, without a task that has to be woken for it. Returns what `take` answers,
        unless that is None, and None once the call has ended well. Raises what `take` raises, and
        what `read` does.
        """
        parsed = self._parsed

        def give(data: bytes) -> Answer | None:
            return None if self._cancelled else take(parsed(data))

        found: Answer | None = await self._from_stream(lambda stream: stream.hand_on(give))
        return found

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def write(self, message: Any) -> None:
        """Returns once the next one can be taken. Raises AioRpcError where the call is over."""
        try:
            await (await self._stream()).write(self._serialize(message))
        except StreamError as error:
            raise _failure(error.code, error.details) from None

    async def done_writing(self) -> None:
        """Say that no more requests come. Raises AioRpcError where the call is over."""
        try:
            stream = await self._stream()
            await stream.flushed()
            stream.end()
        except StreamError as error:
            raise _failure(error.code, error.details) from None

    def done(self) -> bool:
        """Whether it has ended, and whoever read knows, or was cancelled."""
        return self._over

    def cancel(self) -> bool:
        """End it from this side. Returns whether it was not over."""
        if self._over:
            return False
        self._cancelled = True
        self._give_up(StreamError(grpc.StatusCode.CANCELLED, "the call was cancelled here"))
        return True

    async def _send(self, requests: AsyncIterator[Any] | None, first: Headers) -> None:
        try:
            stream = await self._channel.stream(first)
        except (OSError, TimeoutError) as error:
            reason = f"no connection to {self._channel.address}: {_reason(error)}"
            self._give_up(StreamError(grpc.StatusCode.UNAVAILABLE, reason))
            return
        except Exception as error:
            log.exception("a call could not begin")
            reason = f"a call could not begin: {type(error).__name__}"
            self._give_up(StreamError(grpc.StatusCode.INTERNAL, reason))
            return
        self._began.set_result(stream)
        if requests is None:
            return
        try:
            async for message in requests:
                await stream.write(self._serialize(message))
            await stream.flushed()
            stream.end()
        except StreamError:
            return  # whoever reads is told
        except Exception:
            log.exception("the requests of a call could not be sent")
            self.cancel()

    async def _from_stream(self, take: Callable[[Stream], Awaitable[Any]]) -> Any:
        """What `take` gets of it; None: the call ended well. Raises as `read` does."""
        if self._cancelled:
            raise asyncio.CancelledError
        try:
            stream = await self._stream()
            found = await take(stream)
        except asyncio.CancelledError:  # whoever reads is cancelled, and the call with them
            self.cancel()
            raise
        except StreamError as error:
            self._end()
            if self._cancelled:
                raise asyncio.CancelledError from None
            raise _failure(error.code, error.details) from None
        if found is None:
            self._end()
            if self._cancelled:  # by who took a message, when the answer's end had come too
                raise asyncio.CancelledError
            code, details, metadata = headers.status(stream.trailers or ())
            if code is not grpc.StatusCode.OK:
                raise _failure(code, details, metadata)
        return found

    async def _stream(self) -> Stream:
        """Raises StreamError where it could not begin."""
        if self._began.done():
            return self._began.result()
        return await asyncio.shield(self._began)

    def _parsed(self, data: bytes) -> Any:
        try:
            return self._deserialize(data)
        except Exception:  # noqa: BLE001 - what it is, whoever reads decides
            return None

    def _expire(self) -> None:
        self._give_up(
            StreamError(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline has passed")
        )

    def _give_up(self, error: StreamError) -> None:
        if not self._began.done():
            self._began.set_exception(error)
            self._began.exception()  # it need not be read
        elif self._began.exception() is None:
            self._began.result().give_up(error)
        self._end()

    def _end(self) -> None:
        self._over = True
        self._channel.drop(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()


def _reason(error: OSError | TimeoutError) -> str:
    """Why there is no connection. Loops say the same differently."""
    if isinstance(error, TimeoutError):
        return f"it took longer than {CONNECT_SECONDS:g} seconds"
    if type(error) in (OSError, ConnectionRefusedError) and error.errno:
        return os.strerror(error.errno)
    return str(error)


async def _only(message: Any) -> AsyncIterator[Any]:
    yield message


def _failure(code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> grpc.aio.AioRpcError:
    said = grpc.aio.Metadata(*metadata)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), said, details=details)
