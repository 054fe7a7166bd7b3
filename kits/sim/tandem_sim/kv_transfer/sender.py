"""Prefill's end of the hand-over: it writes a room's pages into the memory that decode offered.

A room's export (prefill is ready) and its offer (decode is ready) come in any order; the write
starts with the second. Each offer gets exactly one answer, each export exactly one `settle`. An
offer for parked KV comes second, or too late.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from tandem.byte_budget import ByteBudget
from tandem.engine.kv_tag import KvTag
from tandem.engine.rooms import EndedRooms, KeyedTimers
from tandem.engine.streams import ServedStream, StreamServicer, listen
from tandem.errors import KvCorruptError, KvTransferError, TandemError, VoucherError
from tandem.tasks import Tasks
from tandem.v1 import common_pb2, kv_pb2, kv_pb2_grpc
from tandem.wire.grpc import Server
from tandem.wire.tls import PeerTls
from tandem_loop_grpc.connections import ConnectionLimits
from tandem_sim.kv_transfer import checks
from tandem_sim.kv_transfer.memory import Memory, Peer, Write

log = logging.getLogger(__name__)
_HELLO_SECONDS = 10.0
_POLL_SECONDS = 0.001  # uvloop's finest timer; only while a write is under way
_REMEMBER_SECONDS = 30.0  # how long a room that ended early is told apart from one not yet known
_PHASE = common_pb2.PHASE_PREFILL


@dataclass(slots=True, kw_only=True, eq=False)
class Export:
    """One room that is ready to be handed over."""

    landed: kv_pb2.KvLanded
    """What decode is told with the pages; `bytes`, `seconds` and `tag` are filled in here."""
    pages: Sequence[int]
    wait_seconds: float
    """How long the pages wait for an offer."""
    settle: Callable[[kv_pb2.KvLanded | TandemError], None]
    """Called once, with `landed` or why not; then no transfer touches the pages."""
    tag: KvTag | None = None
    """The tag of the KV, without the pages that the KV is written into: they are filled in here."""
    intact: Callable[[], bool] | None = None
    """Whether the pages are still those of the KV: asked when they have been written."""
    withheld: int = 0
    """How many of the last pages are not written, for a fault."""
    belated_seconds: float = 0.0
    """How long after decode is told the pages are written, for a fault; 0: before."""
    again_seconds: float = 0.0
    """After how long they are written and told a second time, for a fault; 0: never."""
    on_write: Callable[[], None] | None = None
    """Called when the write was started, for a fault."""


@dataclass(slots=True, eq=False)
class _Moving:
    """A write under way, and what it belongs to."""

    export: Export
    link: SenderLink
    write: Write
    started: float
    given_up: TandemError | None = None


class Sender:
    """All rooms of a prefill engine, over all its decode peers."""

    def __init__(
        self,
        memory: Memory,
        *,
        token_bytes: int,
        on_crash: Callable[[BaseException], None],
        tls: PeerTls | None = None,
        limits: ConnectionLimits | None = None,
        budget: ByteBudget | None = None,
    ) -> None:
        """`limits`: of decode engines' connections; what they sent and nobody has read takes of
        `budget`.
        """
        self.memory = memory
        self.hello = memory.describe(token_bytes=token_bytes)
        self.hello.agent_metadata = b""
        self._exports: dict[int, Export] = {}
        self._offers: dict[int, tuple[SenderLink, kv_pb2.KvOffer]] = {}
        self._moving: dict[int, _Moving] = {}
        self._waits: KeyedTimers[int] = KeyedTimers()
        self._leases: KeyedTimers[int] = KeyedTimers()
        self._ended = EndedRooms(_REMEMBER_SECONDS)
        self._links: set[SenderLink] = set()
        self._tasks = Tasks(on_crash)
        self._server = Server(tls, caller="decode", limits=limits, budget=budget)
        self._pumping = False

    async def start(self, host: str, port: int) -> str:
        """Take decode engines' streams on `host`, port 0: any. Returns where: "host:port". Raises
        StartError.
        """
        self._server.add(
            lambda server: kv_pb2_grpc.add_KvTransferServicer_to_server(Servicer(self), server),
            "tandem.v1.KvTransfer",
        )
        return await listen(self._server, host, port)

    def export(self, export: Export) -> None:
        """Hand a room's pages over, as soon as decode has offered some."""
        room = export.landed.room
        ended = self._ended.pop(room)
        if ended is not None:
            export.settle(ended)
            return
        offered = self._offers.pop(room, None)
        if offered is not None:
            self._write(export, *offered)
            return
        self._exports[room] = export
        self._waits.set(room, export.wait_seconds, lambda: self._unoffered(room))

    def awaits_offer(self, room: int) -> bool:
        """Whether the room could be handed over, and decode has offered no pages."""
        return room in self._exports

    def withdraw(self, room: int, reason: TandemError) -> None:
        """Take a room back: its export settles with `reason`, once nothing is written any more.

        Call it for every room that will never be exported too, so that decode learns of it.
        """
        moving = self._moving.get(room)
        if moving is not None:
            moving.given_up = moving.given_up or reason
            return
        offered = self._offers.pop(room, None)
        if offered is not None:
            self._leases.stop(room)
            offered[0].fail(room, reason)
        else:
            self._ended.add(room, reason)
        export = self._exports.pop(room, None)
        if export is not None:
            self._waits.stop(room)
            export.settle(reason)

    def on_offer(self, link: SenderLink, offer: kv_pb2.KvOffer) -> None:
        room = offer.room
        ended = self._ended.pop(room)
        if ended is not None:
            link.fail(room, ended)
        elif offer.parked and room not in self._exports:
            gone = "its KV is not kept any more: it was used, or its time is over"
            link.fail(room, VoucherError(gone, phase=_PHASE))
        elif room in self._offers or room in self._moving:
            link.fail(room, KvTransferError("the room is offered twice", phase=_PHASE))
        else:
            lease_ms = min(offer.lease_ms, checks.MOST_LEASE_MS)
            self._leases.set(room, lease_ms / 1000, lambda: self._lease_over(room))
            export = self._exports.pop(room, None)
            if export is None:
                self._offers[room] = (link, offer)
            else:
                self._waits.stop(room)
                self._write(export, link, offer)

    def on_abort(self, link: SenderLink, room: int) -> None:
        """Decode gave up, perhaps before it offered anything."""
        reason = KvTransferError("decode gave the room up", phase=_PHASE)
        moving = self._moving.get(room)
        if moving is not None:
            if moving.link is link:  # else another's: this one's offer came too late
                moving.given_up = moving.given_up or reason
            return
        export = self._exports.pop(room, None)
        if export is not None:
            self._waits.stop(room)
            export.settle(reason)
            return
        self._ended.add(room, reason)
        if self._offers.pop(room, None) is not None:
            self._leases.stop(room)
            link.confirm_abort(room)

    def add_link(self, link: SenderLink) -> None:
        self._links.add(link)

    def drop_link(self, link: SenderLink) -> None:
        """The stream is gone: nothing more is written to that memory."""
        self._links.discard(link)
        lost = KvTransferError("the hand-over stream from decode broke", phase=_PHASE)
        for room in [room for room, (owner, _) in self._offers.items() if owner is link]:
            del self._offers[room]
            self._leases.stop(room)
            self._ended.add(room, lost)
        abandoned = [moving for moving in self._moving.values() if moving.link is link]
        for moving in abandoned:
            moving.write.release()
        link.disconnect()
        for moving in abandoned:
            self._forget(moving)
            moving.export.settle(moving.given_up or lost)

    async def close(self) -> None:
        """Hang up on every peer and settle every export."""
        for link in self._links:
            link.cut()  # an answer that is due would meet a server that has stopped
        await self._server.stop(0)
        await self._tasks.close()
        for link in list(self._links):
            self.drop_link(link)
        for room in list(self._exports):
            self.withdraw(room, KvTransferError("the prefill engine is closing", phase=_PHASE))
        self._ended.clear()

    def __len__(self) -> int:
        """Rooms that are exported, offered or moving."""
        return len(self._exports) + len(self._offers) + len(self._moving)

    def _write(self, export: Export, link: SenderLink, offer: kv_pb2.KvOffer) -> None:
        room = offer.room
        if len(offer.pages) != len(export.pages):
            self._refuse(
                export,
                link,
                KvTransferError(
                    f"decode offered {len(offer.pages)} pages for {len(export.pages)}", phase=_PHASE
                ),
            )
            return
        if export.tag is not None:
            export.landed.tag = export.tag._replace(pages=offer.generation).packed()
        if seconds := export.belated_seconds or export.again_seconds:
            again = self._misbehave(seconds, export, link, offer)
            self._tasks.start(again, name="kv writes of a fault")
        count = 0 if export.belated_seconds else len(export.pages) - export.withheld
        source, target = export.pages[:count], offer.pages[:count]
        started = time.perf_counter()
        try:
            write = link.write(source, target)
        except KvTransferError as error:
            self._refuse(export, link, error)
            return
        if export.on_write is not None:
            export.on_write()
        export.landed.bytes = len(source) * self.hello.page_bytes
        self._moving[room] = moving = _Moving(export, link, write, started)
        if not self._check(moving):
            link.moving += 1
            link.notify()
            self._start_pump()

    def _refuse(self, export: Export, link: SenderLink, error: KvTransferError) -> None:
        self._leases.stop(export.landed.room)
        link.fail(export.landed.room, error)
        export.settle(error)

    def _check(self, moving: _Moving) -> bool:
        """Whether the write has settled; then its room is answered and forgotten."""
        room = moving.export.landed.room
        error = moving.given_up
        try:
            if not moving.write.settled():
                return False
        except KvTransferError as failure:
            error = error or failure
        if error is None and moving.export.intact is not None and not moving.export.intact():
            error = KvCorruptError(
                "prefill gave the pages away before they were handed over", phase=_PHASE
            )
        moving.write.release()
        self._forget(moving)
        if error is None:
            moving.export.landed.seconds = time.perf_counter() - moving.started
            moving.export.landed.transport = self.memory.transport()
            moving.link.land(moving.export.landed)
        else:
            moving.link.fail(room, error)
        moving.export.settle(moving.export.landed if error is None else error)
        return True

    def _forget(self, moving: _Moving) -> None:
        room = moving.export.landed.room
        del self._moving[room]
        self._leases.stop(room)

    async def _misbehave(
        self, seconds: float, export: Export, link: SenderLink, offer: kv_pb2.KvOffer
    ) -> None:
        """Write a room's pages after all that, and say so again where the fault is to."""
        await asyncio.sleep(seconds)
        with contextlib.suppress(KvTransferError):  # decode may have gone
            write = link.write(export.pages, offer.pages)
            try:
                while not write.settled():  # noqa: ASYNC110 - NIXL has no event for that
                    await asyncio.sleep(_POLL_SECONDS)
            finally:
                write.release()
            if export.again_seconds:
                link.land(export.landed)

    def _start_pump(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._tasks.start(self._pump(), name="kv writes")

    async def _pump(self) -> None:
        try:
            while self._moving:
                await asyncio.sleep(_POLL_SECONDS)
                for moving in list(self._moving.values()):
                    if self._check(moving):
                        moving.link.moving -= 1
        finally:
            self._pumping = False

    def _unoffered(self, room: int) -> None:
        self._exports.pop(room).settle(
            KvTransferError("decode offered no pages in time", phase=_PHASE)
        )

    def _lease_over(self, room: int) -> None:
        offered = self._offers.pop(room, None)
        if offered is not None:
            offered[0].fail(
                room, KvTransferError("prefill was not ready within the lease", phase=_PHASE)
            )
            return
        # A write that does not settle: only cutting the connection ends it for certain.
        self._moving[room].link.cut("a write did not end within the lease of its pages")


class SenderLink(ServedStream):
    """Answers of one stream, collected into one message a write, and the way into its memory."""

    def __init__(self, rooms: Sender) -> None:
        super().__init__(rooms)
        self._draft = kv_pb2.KvAnswers(hello=rooms.hello)
        self._peer: Peer | None = None
        self._pages = 0
        """How many the peer's memory has."""
        self.moving = 0
        """Writes under way: while there are any, decode progresses its end."""

    async def serve(
        self, messages: AsyncIterator[kv_pb2.KvOffers], context: Any, *, read: Sequence[Any] = ()
    ) -> None:
        """Serve the stream until it ends. Nothing is written to the peer's memory afterwards."""
        try:
            first = await asyncio.wait_for(anext(messages), _HELLO_SECONDS)
            self._pages = first.hello.pages
            self._peer = self._greet(first.hello)
        except (StopAsyncIteration, TimeoutError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the stream brought no hello")
        except KvTransferError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)
        await super().serve(messages, context, read=[first])

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
        peer: Peer = self._rooms.memory.connect(hello)
        return peer

    def _on_message(self, message: kv_pb2.KvOffers) -> None:
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


class Servicer(StreamServicer, kv_pb2_grpc.KvTransferServicer):  # type: ignore[misc]
    """See StreamServicer."""

    link = SenderLink
