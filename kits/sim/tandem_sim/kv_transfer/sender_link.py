"""The stream from one decode engine, as prefill serves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from tandem.errors import KvTransferError, TandemError
from tandem.v1 import kv_pb2, kv_pb2_grpc
from tandem.wire.outbox import Outbox
from tandem_sim.kv_transfer import checks
from tandem_sim.kv_transfer.memory import Memory, Peer, Write

log = logging.getLogger(__name__)
_HELLO_SECONDS = 10.0


class SenderSide(Protocol):
    """The sender, as its links need it."""

    memory: Memory
    hello: kv_pb2.KvMemory

    def add_link(self, link: SenderLink) -> None: ...
    def drop_link(self, link: SenderLink) -> None: ...
    def on_offer(self, link: SenderLink, offer: kv_pb2.KvOffer) -> None: ...
    def on_abort(self, link: SenderLink, room: int) -> None: ...


class SenderLink:
    """Answers of one stream, collected into one message a write, and the way into its memory."""

    def __init__(self, rooms: SenderSide) -> None:
        self._rooms = rooms
        self._outbox = Outbox(self._take)
        self._draft = kv_pb2.KvAnswers(hello=rooms.hello)
        self._peer: Peer | None = None
        self._pages = 0
        """How many the peer's memory has."""
        self._serving: asyncio.Task[Any] | None = None
        self._cut = ""
        """Why this side has ended the stream."""
        self.moving = 0
        """Writes under way: while there are any, decode progresses its end."""

    async def serve(
        self,
        offers: AsyncIterator[kv_pb2.KvOffers],
        context: Any,
    ) -> None:
        """Serve the stream until it ends. Nothing is written to the peer's memory afterwards."""
        self._serving = serving = asyncio.current_task()
        assert serving is not None
        try:
            first = await asyncio.wait_for(anext(offers), _HELLO_SECONDS)
            self._pages = first.hello.pages
            self._peer = self._greet(first.hello)
        except (StopAsyncIteration, TimeoutError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the stream brought no hello")
        except KvTransferError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)
        self._rooms.add_link(self)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._outbox.write_to(context))
                fault = await self._read(first, offers)
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

    def write(self, pages: Sequence[int], remote_pages: Sequence[int]) -> Write:
        """Begin to write pages into the peer's memory. Raises KvTransferError."""
        if self._peer is None:
            raise KvTransferError("the decode engine is gone")
        return self._peer.write(pages, remote_pages)

    def land(self, landed: kv_pb2.KvLanded) -> None:
        self._draft.landed.append(landed)
        self._outbox.notify()

    def fail(self, room: int, error: TandemError) -> None:
        self._draft.failed.add(room=room, error=error.to_proto())
        self._outbox.notify()

    def confirm_abort(self, room: int) -> None:
        self._draft.aborted.append(room)
        self._outbox.notify()

    def notify(self) -> None:
        """Wake the stream, because `moving` has changed."""
        self._outbox.notify()

    def cut(self, reason: str = "") -> None:
        """End the stream from this side, and tell decode why. Without a reason the server is to
        tell it, which stops.
        """
        self._cut = reason
        if self._serving is not None:
            self._serving.cancel()

    def disconnect(self) -> None:
        """Close NIXL's connection, so that what was not yet written never will be."""
        peer, self._peer = self._peer, None
        if peer is not None:
            try:
                peer.close()
            except KvTransferError as error:
                log.warning(
                    "the connection to a hand-over's peer could not be closed",
                    extra={"reason": error.message},
                )

    def _greet(self, hello: kv_pb2.KvMemory) -> Peer:
        own = self._rooms.hello
        if (own.page_bytes, own.token_bytes) != (hello.page_bytes, hello.token_bytes):
            raise KvTransferError(
                f"KV pages of {hello.page_bytes} bytes do not fit pages of {own.page_bytes}"
            )
        checks.check_memory(hello)
        self._outbox.notify()
        return self._rooms.memory.connect(hello)

    async def _read(self, first: kv_pb2.KvOffers, others: AsyncIterator[kv_pb2.KvOffers]) -> str:
        """Until decode ends the stream. Returns what it did wrong; empty: nothing."""
        try:
            self._on_offers(first)
            async for message in others:
                self._on_offers(message)
        except KvTransferError as error:
            log.warning(
                "a decode engine broke the hand-over's protocol", extra={"reason": error.message}
            )
            return error.message
        return ""

    def _on_offers(self, message: kv_pb2.KvOffers) -> None:
        checks.check_offers(message)
        for offer in message.offers:
            try:
                checks.check_offer(offer, pages=self._pages)
            except KvTransferError as error:
                self.fail(offer.room, error)
            else:
                self._rooms.on_offer(self, offer)
        for room in message.abort:
            self._rooms.on_abort(self, room)

    def _take(self) -> kv_pb2.KvAnswers:
        answers, self._draft = self._draft, kv_pb2.KvAnswers()
        answers.moving = self.moving > 0
        return answers


class Servicer(kv_pb2_grpc.KvTransferServicer):
    """Each stream is a link of its own."""

    def __init__(self, rooms: SenderSide) -> None:
        self._rooms = rooms

    # A coroutine that writes to the context will do, which the stubs do not say.
    async def Exchange(  # type: ignore[override]
        self,
        request_iterator: AsyncIterator[kv_pb2.KvOffers],
        context: grpc.aio.ServicerContext[kv_pb2.KvOffers, kv_pb2.KvAnswers],
    ) -> None:
        await SenderLink(self._rooms).serve(request_iterator, context)
