"""The ends of grpc-go, for tests as they call and serve with gRPC's core: each is a process of
tests/go, which makes calls, or serves test.Echo, and says what happens.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from asyncio.subprocess import PIPE, Process
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import go_programs
import grpc
import grpc.aio
import pytest

_HEAD: Final = struct.Struct(">II")
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_END_SECONDS: Final = 10.0
GO: Final = (pytest.mark.long, pytest.mark.timeout(go_programs.BUILD_SECONDS + 100))
"""Of a test that runs a program of Go: the first one builds it, for minutes of a busy machine."""
Note = dict[str, Any]
"""What one side says; its message is bytes, beside."""


class End:
    """The process, and the notes that come of it."""

    def __init__(self, process: Process, take: Callable[[Note, bytes], None]) -> None:
        self._process = process
        self._take = take
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def say(self, note: Note, message: bytes = b"") -> None:
        said = json.dumps(note).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(_HEAD.pack(len(said), len(message)) + said + message)
        await self._process.stdin.drain()

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(_END_SECONDS):
            await self._reading
            assert await self._process.wait() == 0

    async def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        try:
            while True:
                sizes = _HEAD.unpack(await stream.readexactly(_HEAD.size))
                note, message = [await stream.readexactly(size) for size in sizes]
                self._take(json.loads(note), message)
        except asyncio.IncompleteReadError:
            self._take({"what": "over"}, b"")


async def _start(take: Callable[[Note, bytes], None], **flags: Any) -> End:
    given = [f"-{name.replace('_', '-')}={value}" for name, value in flags.items()]
    process = await asyncio.create_subprocess_exec(
        program_or_skip("go_end"), *given, stdin=PIPE, stdout=PIPE
    )
    return End(process, take)


def program_or_skip(name: str) -> str:
    try:
        return str(go_programs.binary(name))
    except go_programs.UnavailableError as error:
        pytest.skip(str(error))


@asynccontextmanager
async def go_serving(ended: asyncio.Event, **flags: Any) -> AsyncIterator[int]:
    """The port of a server of test.Echo; `ended`: a handler of a stream, or a slow one, is done."""
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(note: Note, message: bytes) -> None:
        if note["what"] == "listens":
            port.set_result(note["port"])
        elif note["what"] == "ended":
            ended.set()
        elif not port.done():
            port.set_exception(OSError("grpc-go serves nothing"))

    end = await _start(take, **flags)
    try:
        yield await port
    finally:
        await end.close()


class GoChannel:
    """A channel of grpc-go, as generated stubs take it. It starts with its first call."""

    def __init__(self, address: str, **flags: Any) -> None:
        program_or_skip("go_end")
        self._flags = {"address": address, **flags}
        self._notes: asyncio.Queue[tuple[Note, bytes]] = asyncio.Queue()
        self._running: asyncio.Task[None] | None = None
        self._ids = itertools.count(1)
        self._calls: dict[int, GoCall] = {}

    async def __aenter__(self) -> GoChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._running is not None:
            self._notes.put_nowait(({}, b""))
            await self._running

    def unary_unary(self, method: str, **codec: Any) -> Callable[..., Any]:
        async def ask(request: Any, **given: Any) -> Any:
            return await GoCall(self, codec).begin("unary", method, request, **given).read()

        return ask

    def unary_stream(self, method: str, **codec: Any) -> Callable[..., GoCall]:
        async def once(request: Any) -> AsyncIterator[Any]:
            yield request

        def begin(request: Any, **given: Any) -> GoCall:
            call = GoCall(self, codec).begin("server-stream", method, **given)
            return call.send_all(once(request))

        return begin

    def stream_stream(self, method: str, **codec: Any) -> Callable[..., GoCall]:
        def begin(requests: AsyncIterator[Any] | None = None, **given: Any) -> GoCall:
            call = GoCall(self, codec).begin("stream", method, **given)
            return call if requests is None else call.send_all(requests)

        return begin

    def add(self, call: GoCall) -> int:
        """The number of a new call."""
        number = next(self._ids)
        self._calls[number] = call
        return number

    def say(self, note: Note, message: bytes = b"") -> None:
        """In order, once the process is there."""
        self._notes.put_nowait((note, message))
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        end = await _start(self._take, **self._flags)
        while (said := await self._notes.get())[0]:
            await end.say(*said)
        await end.close()

    def _take(self, note: Note, message: bytes) -> None:
        if note["what"] == "over":
            for call in self._calls.values():
                call.take({"what": "ended", "code": grpc.StatusCode.UNKNOWN.value[0]}, b"")
        else:
            self._calls[note["id"]].take(note, message)


class GoCall:
    """One call, used as those of grpc.aio."""

    def __init__(self, channel: GoChannel, codec: dict[str, Any]) -> None:
        self._channel = channel
        self._number = channel.add(self)
        self._serialize: Callable[[Any], bytes] = codec["request_serializer"]
        self._deserialize: Callable[[bytes], Any] = codec["response_deserializer"]
        self._sent: asyncio.Queue[bool] = asyncio.Queue()
        self._received: asyncio.Queue[tuple[Note, bytes]] = asyncio.Queue()
        self._cancelled = False
        self._ended: Note | None = None
        self._sending: asyncio.Task[None] | None = None

    def begin(
        self,
        kind: str,
        method: str,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> GoCall:
        said = [[_base64(each) for each in pair] for pair in metadata]
        note = {"what": "begin", "kind": kind, "method": method, "metadata": said}
        message = b"" if request is None else self._serialize(request)
        self._say(note | {"timeout": timeout or 0}, message)
        return self

    def send_all(self, requests: AsyncIterator[Any]) -> GoCall:
        async def send() -> None:
            async for request in requests:
                await self.write(request)
            await self.done_writing()

        self._sending = asyncio.get_running_loop().create_task(send())
        return self

    def take(self, note: Note, message: bytes) -> None:
        if note["what"] in ("sent", "unsent"):
            self._sent.put_nowait(note["what"] == "sent")
        else:
            self._received.put_nowait((note, message))

    async def write(self, message: Any) -> None:
        self._say({"what": "send"}, self._serialize(message))
        await self._left()

    async def done_writing(self) -> None:
        self._say({"what": "end"})
        await self._left()

    async def read(self) -> Any:
        if self._cancelled:
            raise asyncio.CancelledError
        if self._ended is None:
            self._say({"what": "receive"})
            note, message = await self._received.get()
            if note["what"] == "received":
                return self._deserialize(message)
            self._ended = note
        if self._ended["code"] == -1:
            return grpc.aio.EOF
        raise _failure(self._ended)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def cancel(self) -> bool:
        self._cancelled = True
        self._say({"what": "cancel"})
        return True

    async def _left(self) -> None:
        if not await self._sent.get():
            raise _failure({"code": grpc.StatusCode.UNAVAILABLE.value[0]})

    def _say(self, note: Note, message: bytes = b"") -> None:
        self._channel.say(note | {"id": self._number}, message)


def _base64(value: str | bytes) -> str:
    return b64encode(value.encode() if isinstance(value, str) else value).decode()


def _failure(note: Note) -> grpc.aio.AioRpcError:
    pairs = [[b64decode(each) for each in pair] for pair in note.get("metadata", ())]
    said = [
        (name.decode(), value if name.endswith(b"-bin") else value.decode())
        for name, value in pairs
    ]
    return grpc.aio.AioRpcError(
        _CODES[note["code"]],
        grpc.aio.Metadata(),
        grpc.aio.Metadata(*said),
        details=note.get("details", ""),
    )
