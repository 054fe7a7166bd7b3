"""Decode's end of the hand-over: it offers pages for a room and learns what became of them.

Pages are offered under a lease, so that both sides know by when memory that the other may touch is
given back. Prefill starts no write into them, and none of its writes is under way, later than the
lease after it *read* the offer. Decode reuses them once prefill has answered; without an answer,
once the lease and MARGIN_SECONDS have passed since it *sent* the offer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem import errors
from tandem.engine.rooms import KeyedTimers
from tandem.engine.streams import DialledStream
from tandem.errors import KvTransferError, TandemError
from tandem.tasks import Tasks
from tandem.v1 import common_pb2, kv_pb2, kv_pb2_grpc
from tandem.wire.tls import PeerTls
from tandem_sim.kv_transfer import checks
from tandem_sim.kv_transfer.memory import Memory

MARGIN_SECONDS = 20.0
"""How much longer than their lease pages stay: an offer may travel for so long on a stream that is
still believed alive, because one whose machine is lost, or whose process is silent
(tandem.engine.streams), is given up by then.
"""
_POLL_SECONDS = 0.001  # uvloop's finest timer; only while a peer says that bytes are moving


@dataclass(slots=True, kw_only=True, eq=False)
class Expected:
    """One room that waits for its KV.

    `settle` is called exactly once. With KvLanded the pages hold the KV and are the caller's; with
    an error the receiver keeps them and gives them to `free` as soon as no write can touch them.
    """

    room: int
    pages: Sequence[int]
    lease_seconds: float
    settle: Callable[[kv_pb2.KvLanded | TandemError], None] | None
    generation: int = 0
    """The generation of the pages: see KvOffer."""
    parked: bool = False
    """Prefill has the KV by now, or never will."""
    given_up: TandemError | None = None

    def end(self, result: kv_pb2.KvLanded | TandemError) -> None:
        """Settle, unless that was done."""
        settle, self.settle = self.settle, None
        if settle is not None:
            settle(result)


class KvReceiver:
    """All rooms of a decode engine, over all its prefill peers."""

    def __init__(
        self,
        memory: Memory,
        *,
        token_bytes: int,
        free: Callable[[Sequence[int]], None],
        on_crash: Callable[[BaseException], None],
        settle_seconds: float = 2.0,
        margin_seconds: float = MARGIN_SECONDS,
        tls: PeerTls | None = None,
    ) -> None:
        """`settle_seconds`: how long an abort waits for prefill's word before it is final."""
        self.memory = memory
        self.hello = memory.describe(token_bytes=token_bytes)
        self.tls = tls
        self.free = free
        self.leases: KeyedTimers[Expected] = KeyedTimers()
        self.tasks = Tasks(on_crash)
        self._settle_seconds = settle_seconds
        self._margin_seconds = margin_seconds
        self._links: dict[str, ReceiverLink] = {}
        self._rooms: dict[int, ReceiverLink] = {}
        self._progressing = False

    def expect(self, peer: str, expected: Expected) -> None:
        """Offer pages for a room to the prefill engine at `peer`, "host:port"."""
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = ReceiverLink(self, peer)
            self.tasks.start(link.run(), name=f"kv link to {peer}")
        self._rooms[expected.room] = link
        link.offer(expected)

    def abort(self, room: int, reason: TandemError) -> None:
        """Give a room up. Its settle is called with `reason`: when prefill has answered, or when
        `settle_seconds` have passed. Unknown: no effect.
        """
        link = self._rooms.get(room)
        if link is not None and link.abort(room, reason):
            loop = asyncio.get_running_loop()
            loop.call_later(self._settle_seconds, link.stop_waiting, room)

    def forget(self, room: int) -> None:
        self._rooms.pop(room, None)

    def lease(self, expected: Expected) -> None:
        """Let a peer write into the pages from now on."""

        def expire() -> None:
            link = self._rooms.get(expected.room)
            if link is not None and link.rooms.get(expected.room) is expected:
                del self._rooms[expected.room], link.rooms[expected.room]
            self.memory.progress()  # whatever lies in a socket goes into pages that are still idle
            self.free(expected.pages)
            expected.end(KvTransferError("prefill did not answer within the lease"))

        self.leases.set(expected, expected.lease_seconds + self._margin_seconds, expire)

    def start_progress(self) -> None:
        """Move incoming bytes along until no peer writes any more."""
        if not self._progressing:
            self._progressing = True
            self.tasks.start(self._progress(), name="kv progress")

    def drop_link(self, peer: str) -> None:
        del self._links[peer]

    async def close(self) -> None:
        """Hang up on every peer, settle every room and free all pages."""
        await self.tasks.close()
        self.leases.call_all()

    async def _progress(self) -> None:
        try:
            while any(link.moving for link in self._links.values()):
                self.memory.progress()
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._progressing = False

    def __len__(self) -> int:
        """Rooms that wait, and rooms whose pages are still leased."""
        return len(self._rooms.keys() | {each.room for each in self.leases})


class ReceiverLink(DialledStream):
    """The stream to one prefill engine."""

    stub = kv_pb2_grpc.KvTransferStub

    def __init__(self, receiver: KvReceiver, peer: str) -> None:
        super().__init__(peer, receiver.tls)
        self._receiver = receiver
        self._draft = kv_pb2.KvOffers(hello=receiver.hello)
        self._unsent: dict[int, Expected] = {}
        self.rooms: dict[int, Expected] = {}
        self.moving = False

    def offer(self, expected: Expected) -> None:
        self.rooms[expected.room] = expected
        self._unsent[expected.room] = expected
        self._outbox.notify()

    def abort(self, room: int, reason: TandemError) -> bool:
        """True where prefill must answer first."""
        expected = self.rooms[room]
        if expected.given_up is not None:
            return False
        self._draft.abort.append(room)
        self._outbox.notify()
        if self._unsent.pop(room, None) is not None:
            self._close_room(expected, reason)
            return False
        expected.given_up = reason
        return True

    def stop_waiting(self, room: int) -> None:
        """Prefill does not answer an abort: end the request, keep the pages for their lease."""
        expected = self.rooms.get(room)
        if expected is not None and expected.given_up is not None:
            expected.end(expected.given_up)

    def _on_answers(self, answers: kv_pb2.KvAnswers) -> None:
        if answers.HasField("hello"):
            _check_sizes(self._receiver.hello, answers.hello)
        self.moving = answers.moving
        for landed in answers.landed:
            self._on_landed(landed)
        for failed in answers.failed:
            self._on_refused(failed.room, errors.from_proto(failed.error))
        for room in answers.aborted:
            self._on_refused(room, KvTransferError("aborted"))
        if self.moving:
            self._receiver.start_progress()

    def _on_landed(self, landed: kv_pb2.KvLanded) -> None:
        expected = self.rooms.get(landed.room)
        if expected is None:
            return  # its lease ran out before
        if expected.given_up is not None:
            self._close_room(expected, expected.given_up)
            return
        try:
            checks.check_landed(landed)
        except KvTransferError as error:
            self._close_room(expected, error)
            return
        self._forget(expected)
        expected.end(landed)

    def _on_refused(self, room: int, error: TandemError) -> None:
        expected = self.rooms.get(room)
        if expected is not None:
            self._close_room(expected, expected.given_up or error)

    def _close_room(self, expected: Expected, error: TandemError) -> None:
        """No write can touch the pages any more."""
        self._forget(expected)
        self._receiver.free(expected.pages)
        expected.end(error)

    def _forget(self, expected: Expected) -> None:
        del self.rooms[expected.room]
        self._receiver.leases.stop(expected)
        self._receiver.forget(expected.room)

    def _broken(self, error: KvTransferError) -> None:
        """Prefill may still be writing into what it was offered: those pages stay leased."""
        self._receiver.drop_link(self._peer)
        self.moving = False
        self._log_lost(error, len(self.rooms))
        for expected in list(self.rooms.values()):
            if self._unsent.pop(expected.room, None) is not None:
                self._close_room(expected, error)
            else:
                del self.rooms[expected.room]
                self._receiver.forget(expected.room)
                expected.end(expected.given_up or error)

    def _take(self) -> kv_pb2.KvOffers:
        unsent, self._unsent = self._unsent, {}
        offers, self._draft = self._draft, kv_pb2.KvOffers()
        for expected in unsent.values():
            self._receiver.lease(expected)
            offers.offers.add(
                room=expected.room,
                pages=expected.pages,
                lease_ms=max(1, int(expected.lease_seconds * 1000)),
                parked=expected.parked,
                generation=expected.generation,
            )
        return offers


def _check_sizes(own: kv_pb2.KvMemory, other: kv_pb2.KvMemory) -> None:
    if (own.page_bytes, own.token_bytes) != (other.page_bytes, other.token_bytes):
        raise KvTransferError(
            "the prefill engine's KV pages have another size: "
            f"{other.page_bytes} bytes against {own.page_bytes}",
            phase=common_pb2.PHASE_DECODE,
        )
