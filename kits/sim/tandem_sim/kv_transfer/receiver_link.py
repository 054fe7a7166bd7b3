"""The stream to one prefill engine, as decode holds it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc.aio

from tandem import errors
from tandem.errors import KvTransferError, TandemError
from tandem.v1 import common_pb2, kv_pb2, kv_pb2_grpc
from tandem.wire.grpc import open_channel
from tandem.wire.outbox import Outbox
from tandem.wire.tls import PeerTls
from tandem_sim.kv_transfer import checks
from tandem_sim.kv_transfer.lease import STREAM_SILENCE_SECONDS, Leases

log = logging.getLogger(__name__)


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


class ReceiverSide(Protocol):
    """The receiver, as its links need it."""

    hello: kv_pb2.KvMemory
    tls: PeerTls | None
    free: Callable[[Sequence[int]], None]
    leases: Leases[int]

    def lease(self, expected: Expected) -> None: ...
    def forget(self, room: int) -> None: ...
    def start_progress(self) -> None: ...
    def drop_link(self, peer: str) -> None: ...


class ReceiverLink:
    """The stream to one prefill engine."""

    def __init__(self, receiver: ReceiverSide, peer: str) -> None:
        self._receiver = receiver
        self._peer = peer
        self._outbox = Outbox(self._take)
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

    async def run(self) -> None:
        error = KvTransferError("the prefill engine closed the hand-over stream")
        try:
            async with open_channel(
                self._peer,
                self._receiver.tls,
                role="prefill",
                silence_seconds=STREAM_SILENCE_SECONDS,
            ) as channel:
                call = kv_pb2_grpc.KvTransferStub(channel).Exchange(self._outbox.messages())
                await self._read(call)
        except grpc.aio.AioRpcError as broken:
            error = KvTransferError(
                f"the hand-over stream to {self._peer} broke: {broken.code().name.lower()}"
                f" ({broken.details()})"
            )
        except KvTransferError as refused:
            error = refused
        finally:
            self._broken(error)

    async def _read(self, call: AsyncIterable[kv_pb2.KvAnswers | None]) -> None:
        """Raises KvTransferError where the peer says what cannot be read."""
        async for answers in call:
            if answers is None:
                raise KvTransferError("the prefill engine said what cannot be read")
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
        self._receiver.leases.settle(expected.room)
        self._receiver.forget(expected.room)

    def _broken(self, error: KvTransferError) -> None:
        """Prefill may still be writing into what it was offered: those pages stay leased."""
        self._receiver.drop_link(self._peer)
        self._outbox.stop()
        self.moving = False
        if self.rooms:
            log.warning(
                "hand-over stream lost",
                extra={"peer": self._peer, "reason": error.message, "count": len(self.rooms)},
            )
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
