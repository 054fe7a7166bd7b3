"""What two engines say of a hand-over: decode's offers to prefill, and prefill's answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from typing import Any

from google.protobuf.message import DecodeError

from fuzzing.messages import spoil_message
from fuzzing.router_bench import AbortedError, Context, once
from fuzzing.target import FoundError, Target
from tandem.errors import KvTransferError, TandemError
from tandem.v1 import common_pb2, kv_pb2
from tandem_sim.kv_transfer.receiver import Expected, KvReceiver, ReceiverLink
from tandem_sim.kv_transfer.sender import Export, Sender, Servicer

ROOMS = range(1, 6)
"""Those that inputs may name; each has as many pages as its number."""
GOOD = 4_000_000_011
"""The room that nobody may harm; no input has the number."""
_PAGE_BYTES, _TOKEN_BYTES, _PAGES = 256, 16, 64
_PATIENCE_SECONDS = 60.0
_TURNS = 6


class FakeMemory:
    """NIXL's memory without NIXL."""

    def describe(self, *, token_bytes: int) -> kv_pb2.KvMemory:
        return kv_pb2.KvMemory(
            instance="own", page_bytes=_PAGE_BYTES, pages=_PAGES, token_bytes=token_bytes
        )

    def connect(self, peer: kv_pb2.KvMemory) -> FakePeer:
        return FakePeer(peer.pages)

    def progress(self) -> None: ...

    def transport(self) -> str:
        return "shm"


class FakePeer:
    """Memory of so many pages, which no write may leave."""

    def __init__(self, pages: int) -> None:
        self._pages = pages

    def write(self, pages: Sequence[int], remote_pages: Sequence[int]) -> FakeWrite:
        if len(set(remote_pages)) < len(pages) or max(remote_pages, default=0) >= self._pages:
            raise FoundError("fault", f"{remote_pages} of {self._pages} pages are written")
        return FakeWrite(at_once=len(pages) % 2 == 1)

    def close(self) -> None: ...


class FakeWrite:
    """It has settled at once, or when it is asked for the second time."""

    def __init__(self, *, at_once: bool) -> None:
        self._done = at_once

    def settled(self) -> bool:
        done, self._done = self._done, True
        return done

    def release(self) -> None: ...


def _hello() -> kv_pb2.KvMemory:
    return kv_pb2.KvMemory(
        instance="peer",
        agent_metadata=b"m",
        base_address=4096,
        page_bytes=_PAGE_BYTES,
        pages=_PAGES,
        token_bytes=_TOKEN_BYTES,
    )


class OffersSubject:
    """Each input is said on a stream of its own; beside it another peer's room is handed over."""

    def __init__(self) -> None:
        self._sender = Sender(
            FakeMemory(),  # type: ignore[arg-type]
            token_bytes=_TOKEN_BYTES,
            on_crash=_raise,
        )
        self._servicer = Servicer(self._sender)
        self._settled: Counter[int] = Counter()

    async def give(self, data: bytes) -> None:
        try:
            message = kv_pb2.KvOffers.FromString(data)
        except DecodeError:
            return  # gRPC ends the stream before we see it
        self._settled.clear()
        good = asyncio.ensure_future(self._hand_over())
        for room in ROOMS:
            self._export(room)
        first = [] if message.HasField("hello") else [kv_pb2.KvOffers(hello=_hello())]
        stream = asyncio.ensure_future(
            self._servicer.Exchange(_said(*first, message), Context())  # type: ignore[arg-type]
        )
        await asyncio.wait({stream}, timeout=_PATIENCE_SECONDS)
        # A lease that ends while its pages are written cuts the stream.
        if not stream.cancelled() and not isinstance(stream.exception(), AbortedError):
            stream.result()
        for room in ROOMS:
            self._sender.withdraw(room, KvTransferError("the input is over"))
        if not await asyncio.wait_for(good, _PATIENCE_SECONDS):
            raise FoundError("fault", "another peer's room is not handed over")
        if any(self._settled[room] != 1 for room in ROOMS):
            raise FoundError("fault", f"rooms have settled so often: {self._settled}")
        if len(self._sender):
            raise FoundError("leak", "a room outlives its stream")
        self._sender._ended.clear()

    async def left_open(self) -> int:
        return len(self._sender) + len(self._sender._links)

    def _export(self, room: int) -> None:
        landed = kv_pb2.KvLanded(room=room, first_token=5)
        self._sender.export(
            Export(
                landed=landed,
                pages=range(room % 8),
                wait_seconds=60.0,
                settle=lambda _: self._settled.update([room]),
            )
        )

    async def _hand_over(self) -> bool:
        """A good peer's room, from its offer until it has landed."""
        self._export(GOOD)
        offer = kv_pb2.KvOffer(room=GOOD, pages=range(GOOD % 8), lease_ms=60_000)
        context = Context()
        await self._servicer.Exchange(
            _said(kv_pb2.KvOffers(hello=_hello(), offers=[offer])),
            context,  # type: ignore[arg-type]
        )
        answers = [kv_pb2.KvAnswers.FromString(each) for each in context.written]
        return [landed.room for each in answers for landed in each.landed] == [GOOD]


class AnswersSubject:
    """Each input is said on a link of its own; beside it another peer's room waits for its KV."""

    def __init__(self) -> None:
        self._freed: Counter[int] = Counter()
        self._settled: Counter[int] = Counter()
        self._receiver = KvReceiver(
            FakeMemory(),  # type: ignore[arg-type]
            token_bytes=_TOKEN_BYTES,
            free=self._freed.update,
            on_crash=_raise,
        )

    async def give(self, data: bytes) -> None:
        try:
            message = kv_pb2.KvAnswers.FromString(data)
        except DecodeError:
            return  # gRPC ends the stream before we see it
        self._freed.clear()
        self._settled.clear()
        good, link = self._link("good:1", [GOOD]), self._link("bad:1", ROOMS)
        link.abort(2, KvTransferError("given up"))
        fault = KvTransferError("its stream ended")
        try:
            await link._read(once(message))
        except KvTransferError as error:
            fault = error
        link._broken(fault)
        if GOOD not in good.rooms or GOOD not in self._receiver._rooms:
            raise FoundError("fault", "another peer's room was ended")
        good._on_landed(kv_pb2.KvLanded(room=GOOD, seconds=0.1))
        good._broken(fault)
        await self._receiver.close()
        if any(self._settled[room] != 1 for room in (GOOD, *ROOMS)):
            raise FoundError("fault", f"rooms have settled so often: {self._settled}")
        if any(count > 1 for count in self._freed.values()):
            raise FoundError("fault", "pages are given back twice")
        if len(self._receiver):
            raise FoundError("leak", "a room outlives its stream")

    async def left_open(self) -> int:
        return len(self._receiver)

    def _link(self, peer: str, rooms: Sequence[int]) -> ReceiverLink:
        """One whose rooms are offered already."""
        link = self._receiver._links[peer] = ReceiverLink(self._receiver, peer)
        for room in rooms:
            self._receiver._rooms[room] = link
            link.offer(
                Expected(
                    room=room, pages=[room], lease_seconds=60.0, settle=partial(self._settle, room)
                )
            )
        link._take()
        return link

    def _settle(self, room: int, result: kv_pb2.KvLanded | TandemError) -> None:
        self._settled[room] += 1
        if isinstance(result, kv_pb2.KvLanded) and not isfinite(result.seconds):
            raise FoundError("fault", "a time that cannot be is believed")


async def _said(*messages: Any) -> AsyncIterator[Any]:
    """A stream whose other end goes on living until what it asked for has been answered."""
    for message in messages:
        yield message
    for _ in range(_TURNS):
        await asyncio.sleep(0.001)


def _raise(error: BaseException) -> None:
    asyncio.get_running_loop().call_exception_handler({"message": "crash", "exception": error})


def _offers() -> Sequence[bytes]:
    offers = [kv_pb2.KvOffer(room=n, pages=range(n % 8), lease_ms=1000 * n) for n in ROOMS]
    messages = [
        kv_pb2.KvOffers(hello=_hello(), offers=offers),
        kv_pb2.KvOffers(hello=_hello(), offers=offers[:2], abort=[2, 4]),
        kv_pb2.KvOffers(offers=offers[3:], abort=[1]),
        kv_pb2.KvOffers(abort=[1, 2, 3]),
    ]
    return [message.SerializeToString() for message in messages]


def _answers() -> Sequence[bytes]:
    error = common_pb2.Error(code="kv_transfer_failed", message="m")
    landed = [
        kv_pb2.KvLanded(
            room=n,
            first_token=n,
            bytes=n,
            seconds=0.1,
            first_logprob=-1.0,
            top_token_id=[n],
            top_logprob=[-1.0],
        )
        for n in ROOMS
    ]
    messages = [
        kv_pb2.KvAnswers(hello=_hello(), landed=landed[:2], moving=True),
        kv_pb2.KvAnswers(landed=landed, aborted=[5]),
        kv_pb2.KvAnswers(landed=landed[3:], failed=[kv_pb2.KvFailed(room=1, error=error)]),
        kv_pb2.KvAnswers(failed=[kv_pb2.KvFailed(room=2, error=error)], aborted=[1, 4]),
    ]
    return [message.SerializeToString() for message in messages]


@contextmanager
def _subject(kind: type[Any]) -> Iterator[Any]:
    yield kind()


OFFERS, ANSWERS = (
    Target(
        name=name,
        goal=50_000,
        corpus=corpus,
        spoil=partial(spoil_message, message),
        subject=partial(_subject, kind),
    )
    for name, corpus, message, kind in (
        ("kv-offers", _offers, kv_pb2.KvOffers, OffersSubject),
        ("kv-answers", _answers, kv_pb2.KvAnswers, AnswersSubject),
    )
)
