"""The streams on which two engines speak of hand-overs: decode dials, and prefill serves.

What is to be said on a stream is collected in a draft, which leaves as one message a write
(tandem.wire.outbox). What the messages say is the kits' business.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from tandem import sockets
from tandem.errors import KvTransferError
from tandem.v1 import common_pb2
from tandem.wire.grpc import Server, open_channel
from tandem.wire.outbox import Outbox
from tandem.wire.tls import PeerTls

log = logging.getLogger(__name__)
STREAM_SILENCE_SECONDS = 15.0
"""A prefill process that says nothing for so long, or up to a quarter longer, is given up."""


class DialledStream(ABC):
    """The stream to one prefill engine. It is dialled when the first room needs the engine, and
    dropped when it breaks; the next room dials again, so a restarted peer is met anew.
    """

    stub: Any
    """Makes the service's stub of a channel."""

    def __init__(self, peer: str, tls: PeerTls | None) -> None:
        """`peer`: "host:port"."""
        self._peer = peer
        self._tls = tls
        self._outbox: Outbox[Any] = Outbox(self._take)

    async def run(self) -> None:
        """Speak until the stream ends, whoever ends it."""
        error = KvTransferError(
            "the prefill engine closed the hand-over stream", phase=common_pb2.PHASE_DECODE
        )
        try:
            async with open_channel(
                self._peer, self._tls, role="prefill", silence_seconds=STREAM_SILENCE_SECONDS
            ) as channel:
                await self._read(type(self).stub(channel).Exchange(self._outbox.messages()))
        except grpc.aio.AioRpcError as broken:
            error = KvTransferError(
                f"the hand-over stream to {self._peer} broke: {broken.code().name.lower()}"
                f" ({broken.details()})",
                phase=common_pb2.PHASE_DECODE,
            )
        except KvTransferError as refused:
            error = refused
        finally:
            self._outbox.stop()
            self._broken(error)

    async def _read(self, call: AsyncIterable[Any | None]) -> None:
        """Raises KvTransferError where the peer says what cannot be read."""
        async for answers in call:
            if answers is None:
                raise KvTransferError("the prefill engine said what cannot be read")
            self._on_answers(answers)

    def _log_lost(self, error: KvTransferError, count: int) -> None:
        """`count`: rooms that were open on the stream."""
        if count:
            log.warning(
                "hand-over stream lost",
                extra={"peer": self._peer, "reason": error.message, "count": count},
            )

    @abstractmethod
    def _take(self) -> Any:
        """The draft, which begins anew."""

    @abstractmethod
    def _on_answers(self, answers: Any) -> None:
        """Raises KvTransferError for what no prefill engine says."""

    @abstractmethod
    def _broken(self, error: KvTransferError) -> None:
        """The stream is over."""


class Rooms(Protocol):
    """A prefill engine's rooms, as its streams know them."""

    def add_link(self, link: Any) -> None: ...
    def drop_link(self, link: Any) -> None: ...


class ServedStream(ABC):
    """The stream from one decode engine."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms: Any = rooms
        self._outbox: Outbox[Any] = Outbox(self._take)
        self._serving: asyncio.Task[Any] | None = None
        self._cut = ""
        """Why this side has ended the stream."""

    async def serve(
        self, messages: AsyncIterator[Any], context: Any, *, read: Sequence[Any] = ()
    ) -> None:
        """Serve the stream until it ends. `read`: messages that were read already."""
        self._serving = serving = asyncio.current_task()
        assert serving is not None
        self._rooms.add_link(self)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outbox.write_to(context))
                fault = await self._read(read, messages)
                self._outbox.close()
        except asyncio.CancelledError:
            if not self._cut:
                raise
            fault = self._cut  # a handler that is cancelled says nothing of it
            serving.uncancel()
        finally:
            self._rooms.drop_link(self)
        if fault:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, fault)

    def cut(self, reason: str = "") -> None:
        """End the stream from this side, and tell decode why. Without a reason the server is to
        tell it, which stops.
        """
        self._cut = reason
        if self._serving is not None:
            self._serving.cancel()

    async def _read(self, read: Sequence[Any], others: AsyncIterator[Any]) -> str:
        """Until decode ends the stream. Returns what it did wrong; empty: nothing."""
        try:
            for message in read:
                self._on_message(message)
            async for message in others:
                self._on_message(message)
        except KvTransferError as error:
            log.warning(
                "a decode engine broke the hand-over's protocol", extra={"reason": error.message}
            )
            return error.message
        return ""

    @abstractmethod
    def _take(self) -> Any:
        """The draft, which begins anew."""

    @abstractmethod
    def _on_message(self, message: Any) -> None:
        """Raises KvTransferError for what no decode engine says."""


class StreamServicer:
    """For the servicer of a kit's service: each stream is a link of its own."""

    link: type[ServedStream]

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    # A coroutine that writes to the context will do, which the stubs do not say.
    async def Exchange(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        await self.link(self._rooms).serve(request_iterator, context)


async def listen(server: Server, host: str, port: int) -> str:
    """Take decode engines' streams on `host`, port 0: any. Returns where: "host:port". Raises
    StartError.
    """
    listening = await server.start(sockets.endpoint(host, port), setting="kv_port")
    await server.set_serving(True)
    return sockets.endpoint(host, listening)
