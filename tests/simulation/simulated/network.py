"""gRPC without sockets: the real stubs and servicers, their real bytes, and a network that delays,
breaks and forgets.

A stream keeps its order; streams are independent of each other. When one breaks, a part of what was
in flight still arrives, and each end notices at a moment of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from simulated.loop import PROCESS, Process, VirtualLoop
from tandem.v1 import router_pb2
from tandem.wire import faces

Codec = Callable[[Any], Any]
Metadata = tuple[tuple[str, str], ...]
_OK = ""
_WHOLE: Mapping[str, Codec] = {"/tandem.v1.Router/Connect": router_pb2.RouterMessage.FromString}
"""What makes messages of bytes, where a client's own codec does not."""
CALL: contextvars.ContextVar[Call] = contextvars.ContextVar("call")
"""The stream that a servicer is serving."""


class AbortedError(Exception):
    """A servicer ended its call with a status."""


class Said:
    """All that one end of a stream has sent."""

    def __init__(self, by: str, to: str, show: Callable[[str, str, object], None]) -> None:
        self.by, self.to, self._show = by, to, show
        self.messages = sha256()

    def add(self, item: bytes | str) -> None:
        """A message, or the status that ends the stream."""
        if isinstance(item, str):
            self._show(self.by, self.to, item)
        data = item if isinstance(item, bytes) else item.encode()
        self.messages.update(b"%d %d " % (isinstance(item, bytes), len(data)) + data)


class Pipe:
    """One direction of a stream."""

    def __init__(self, network: Network, said: Said) -> None:
        self._network = network
        self._said = said
        self._last = 0.0
        self._flying: deque[asyncio.TimerHandle] = deque()
        self._arrived: deque[bytes | str] = deque()
        """Messages, and the status that ends them."""
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._cut = False
        self.on_status: Callable[[str], None] | None = None
        """Told at once of an end that is not good, whatever is unread."""

    def send(self, item: bytes | str) -> None:
        """A message, or the status that ends the stream."""
        if self._cut:
            return
        self._said.add(item)
        loop = self._network.loop
        self._last = max(self._last, loop.time() + self._network.delay())
        self._flying.append(loop.at(self._last, self._arrive, item))

    @property
    def blocked(self) -> bool:
        """Whoever writes has to wait, or nobody reads any more."""
        return self._cut or self._full

    @property
    def _full(self) -> bool:
        """As gRPC's flow control has it: what its reader has not taken counts too."""
        return len(self._flying) + len(self._arrived) > self._network.window

    async def write(self, data: bytes) -> None:
        """Returns once the transport takes the next message."""
        if not self.put(data):
            await self.flushed()

    def put(self, data: bytes) -> bool:
        """Returns whether the transport takes the next message at once."""
        self.send(data)
        return not self._full

    async def flushed(self) -> None:
        while self._full:
            self._writer = asyncio.get_running_loop().create_future()
            await self._writer

    async def read(self) -> bytes | str:
        while not self._arrived:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        _wake(self._writer)
        return self._arrived.popleft()

    def cut(self, status: str) -> None:
        """Lose a part of what is in flight. The reader learns of it later, and so does a writer
        that waits: its task ends with the stream.
        """
        if self._cut:
            return
        self._cut = True
        keep = self._network.random.randint(0, len(self._flying))
        last = self._network.loop.time()
        for handle in list(self._flying)[keep:]:
            handle.cancel()
        for handle in list(self._flying)[:keep]:
            last = max(last, handle.when())
        self._network.loop.at(last + self._network.delay(), self._arrive, status)

    def _arrive(self, item: bytes | str) -> None:
        if self._flying:
            self._flying.popleft()
        if isinstance(item, str) and item and self.on_status is not None:
            self.on_status(item)
        self._arrived.append(item)
        _wake(self._reader)
        _wake(self._writer)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class Call:
    """A stream of one client and one server, as its client sees it."""

    def __init__(self, network: Network, client: Process, address: str, method: str) -> None:
        self._network = network
        self.client = client
        self.server: Process | None = None
        self.address, self.method = address, method
        self.up = Pipe(network, network.record(client.name, address + method))
        self.down = Pipe(network, network.record(address + method, client.name))
        self.over_at: float | None = None
        """When it broke, or its server ended it; None: it is open."""
        self.ended_well = False
        """Its server has ended it in good order, and its client has read that."""
        self._sending: asyncio.Task[None] | None = None
        self._handling: asyncio.Task[None] | None = None
        self._cancelled = False
        self._deserialize: Codec = bytes

    def seen(self, data: bytes) -> Any:
        """A message of the server's, as whoever watches sees it: a frontend reads some by hand."""
        return _WHOLE.get(self.method, self._deserialize)(data)

    # --- the client's side ---

    def begin(self, requests: AsyncIterator[Any], serialize: Codec, deserialize: Codec) -> Call:
        self._deserialize = deserialize
        loop = self._network.loop
        self._sending = loop.create_task(self._send(requests, serialize))
        self._network.calls[self] = None
        loop.later(self._network.delay(), self._connect)
        return self

    async def read(self) -> Any:
        if self._cancelled:
            raise asyncio.CancelledError
        item = await self.down.read()
        if isinstance(item, bytes):
            try:
                message = self._deserialize(item)
            except DecodeError:
                return None  # as grpc.aio has it
            self._network.watch_arrival(self, self.seen(item))
            return message
        self.down._arrived.append(item)  # also for whoever reads again
        self._client_over()
        if item != _OK:
            raise failure(item)
        self.ended_well = True
        return grpc.aio.EOF

    async def hand_on(self, take: Callable[[Any], Any]) -> Any:
        while (message := await self.read()) is not grpc.aio.EOF:
            if (answer := take(message)) is not None:
                return answer
        return None

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def cancel(self) -> bool:
        if self._cancelled:
            return False
        self._cancelled = True
        self._client_over()
        self.up.send("CANCELLED: by the client")
        self.up._cut = True
        return True

    async def _send(self, requests: AsyncIterator[Any], serialize: Codec) -> None:
        try:
            async for message in requests:
                self._network.watch_up(self, message)
                await self.up.write(serialize(message))
            self.up.send(_OK)
        except Exception:  # noqa: BLE001 - grpc.aio does the same: it swallows it and cancels the call
            self.cancel()

    def _client_over(self) -> None:
        self._network.calls.pop(self, None)
        if self._sending is not None:
            self._sending.cancel()

    @property
    def over(self) -> bool:
        """It broke, or its server has ended it."""
        return self.over_at is not None

    def _end(self) -> None:
        if self.over_at is None:
            self.over_at = self._network.loop.time()

    @property
    def over_unseen(self) -> bool:
        """It is over, and its client does not know that yet."""
        return self.over and not self._cancelled

    # --- the server's side ---

    def _connect(self) -> None:
        listener = self._network.listeners.get(self._network.resolve(self.address))
        if listener is None or listener.process.dead or self.over:
            self.down.send("UNAVAILABLE: nobody listens there")
            return
        self.server = listener.process
        handler = listener.handlers[self.method]
        self.up.on_status = self._server_lost
        self._handling = self._network.loop.spawn(listener.process, self._handle(handler))

    async def _handle(self, handler: Any) -> None:
        CALL.set(self)
        context = _Context(self, handler.response_serializer)
        try:
            await handler.stream_stream(self._requests(handler.request_deserializer), context)
        except AbortedError as error:
            self.down.send(str(error))
        except Exception as error:  # noqa: BLE001 - a servicer's fault, as gRPC reports it
            self._network.loop.faults.append(f"a servicer raised {error!r}")
            self.down.send(f"UNKNOWN: {error!r}")
        else:
            self.down.send(_OK)
        finally:
            self._end()

    async def _requests(self, deserialize: Codec) -> AsyncIterator[Any]:
        while isinstance(item := await self.up.read(), bytes):
            yield deserialize(item)
        if item != _OK:
            await asyncio.get_running_loop().create_future()  # the handler is being cancelled

    def _server_lost(self, _: str) -> None:
        if self._handling is not None and self.server is not None:
            self._network.loop.call_soon(self._handling.cancel, context=self.server.context)

    # --- the network's ---

    def break_off(self) -> None:
        """Both ends lose it."""
        self._end()
        self._network.calls.pop(self, None)
        self.up.cut("UNAVAILABLE: the connection broke")
        self.down.cut("UNAVAILABLE: the connection broke")


class _Context:
    def __init__(self, call: Call, serialize: Codec) -> None:
        self._call, self._serialize = call, serialize

    def peer(self) -> str:
        return self._call.client.name

    async def write(self, message: Any) -> None:
        if not self.put(message):
            await self.flushed()

    def put(self, message: Any) -> bool:
        """What is watched is what a client can read: some servicers write bytes already."""
        data = self._serialize(message)
        self._call._network.watch_down(self._call, self._call.seen(data))
        return self._call.down.put(data)

    async def flushed(self) -> None:
        await self._call.down.flushed()

    async def abort(self, code: grpc.StatusCode, details: str = "", _: Any = ()) -> None:
        raise AbortedError(f"{code.name}: {details}")


def failure(status: str) -> grpc.aio.AioRpcError:
    name, _, details = status.partition(": ")
    empty = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode[name], empty, empty, details=details)


@dataclass(slots=True)
class Listener:
    """What one address serves; it takes servicers as a grpc.aio.Server does."""

    process: Process
    handlers: dict[str, Any] = field(default_factory=dict)

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        pass

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        self.handlers |= {f"/{service}/{name}": each for name, each in handlers.items()}


def _meant(address: str, metadata: Metadata) -> str:
    """Where it is heard: the phases of an aggregated worker are listeners of their own."""
    return next((faces.key(address, phase) for _, phase in metadata), address)


class Channel:
    """What generated stubs call."""

    def __init__(self, network: Network, client: Process, address: str) -> None:
        self._network, self._client, self._address = network, client, address

    def stream_stream(
        self, method: str, *, request_serializer: Codec, response_deserializer: Codec, **_: Any
    ) -> Callable[..., Call]:
        def begin(requests: AsyncIterator[Any], metadata: Metadata = ()) -> Call:
            address = _meant(self._address, metadata)
            call = Call(self._network, self._client, address, method)
            return call.begin(requests, request_serializer, response_deserializer)

        return begin

    def unary_unary(
        self, method: str, *, request_serializer: Codec, response_deserializer: Codec, **_: Any
    ) -> Callable[..., Any]:
        async def ask(request: Any, timeout: float, metadata: Metadata = ()) -> Any:
            address = _meant(self._address, metadata)
            try:
                async with asyncio.timeout(timeout):
                    data = await self._ask(address, method, request, request_serializer(request))
            except TimeoutError:
                raise failure("DEADLINE_EXCEEDED: no answer") from None
            answer = response_deserializer(data)
            self._network.show(address, self._client.name, answer)
            return answer

        return ask

    def unary_stream(self, *_: Any, **__: Any) -> None:
        return None

    async def _ask(self, address: str, method: str, request: Any, data: bytes) -> bytes:
        network = self._network
        network.show(self._client.name, address, request)
        network.record(self._client.name, address + method).add(data)
        await asyncio.sleep(network.delay())
        listener = network.listeners.get(address)
        if listener is None or listener.process.dead:
            raise failure("UNAVAILABLE: nobody listens there")
        handler = listener.handlers[method]
        answering = network.loop.spawn(listener.process, _answer(handler, data))
        answer = await asyncio.shield(answering)
        network.record(address + method, self._client.name).add(answer)
        await asyncio.sleep(network.delay())
        return answer


async def _answer(handler: Any, data: bytes) -> bytes:
    answer = await handler.unary_unary(handler.request_deserializer(data), None)
    serialized: bytes = handler.response_serializer(answer)
    return serialized


def _unwatched(call: Call, message: Any) -> None:
    pass


def _unseen(by: str, to: str, said: object) -> None:
    pass


class Network:
    """All streams that are open, and who listens where."""

    def __init__(
        self, loop: VirtualLoop, source: random.Random, delays: tuple[float, ...], window: int
    ) -> None:
        self.loop = loop
        self.random = source
        self.delays = delays
        self.window = window
        self.calls: dict[Call, None] = {}
        self.said: list[Said] = []
        """What each end of each stream has sent, ended streams included."""
        self.show: Callable[[str, str, object], None] = _unseen
        """Told of statuses, and of messages outside of streams, for people."""
        self.listeners: dict[str, Listener] = {}
        self.services: dict[str, list[str]] = {}
        """A name that stands for several addresses."""
        self.watch_up: Callable[[Call, Any], None] = _unwatched
        """Told of each message that a client sends."""
        self.watch_down: Callable[[Call, Any], None] = _unwatched
        """Told of each message that a server sends."""
        self.watch_arrival: Callable[[Call, Any], None] = _unwatched
        """Told of each message of a server that its client reads."""

    def record(self, by: str, to: str) -> Said:
        """What is sent from now on by one to the other."""
        said = Said(by, to, self.show)
        self.said.append(said)
        return said

    def delay(self) -> float:
        return self.random.choice(self.delays) * self.random.random()

    def resolve(self, address: str) -> str:
        addresses = self.services.get(address)
        if addresses is None:
            # Routers listen at their names; whoever looks them up adds a port.
            return address if address in self.listeners else address.removesuffix(":1")
        return self.random.choice(addresses) if addresses else ""

    def listen(self, address: str, process: Process) -> Listener:
        listener = self.listeners[address] = Listener(process)
        return listener

    @asynccontextmanager
    async def open_channel(
        self, address: str, tls: object = None, *, role: str = ""
    ) -> AsyncIterator[Channel]:
        """What a process calls instead of tandem.wire.grpc.open_channel."""
        client = PROCESS.get()
        assert client is not None, "only a process opens channels"
        yield Channel(self, client, address)

    def of(self, process: Process) -> list[Call]:
        """The streams that one of its ends holds."""
        return [call for call in self.calls if process in (call.client, call.server)]
