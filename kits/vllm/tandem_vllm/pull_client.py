"""Decode's end of the words around a hand-over: it calls for a room, and says what it has read.

One link for each prefill engine, dialled when its first room comes and dropped when its stream
breaks; the next room dials again, so a restarted peer is met anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass

import grpc.aio

from tandem import errors
from tandem.errors import KvTransferError, TandemError
from tandem.v1 import common_pb2, pull_pb2, pull_pb2_grpc
from tandem.wire.grpc import open_channel
from tandem.wire.outbox import Outbox
from tandem.wire.tls import PeerTls
from tandem_vllm.words import STREAM_SILENCE_SECONDS, check_ready

log = logging.getLogger(__name__)
_PHASE = common_pb2.PHASE_DECODE
Settle = Callable[["Readable | TandemError"], None]


@dataclass(slots=True, frozen=True)
class Readable:
    """A room whose KV lies in prefill's memory."""

    ready: pull_pb2.PullReady
    until: float
    """By time.monotonic(): what was read later may be of another request."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Wanted:
    room: int
    parked: bool
    settle: Settle
    called: float = 0.0
    """By time.monotonic(), before the call was sent."""
    readable: bool = False


class PullClient:
    """All rooms of a decode engine, over all its prefill peers."""

    def __init__(self, tls: PeerTls | None) -> None:
        self._tls = tls
        self._links: dict[str, _Link] = {}
        self._rooms: dict[int, _Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def call(self, peer: str, room: int, *, parked: bool, settle: Settle) -> None:
        """Want the KV of a room of the prefill engine at `peer`, "host:port". `settle` is told once
        that the KV can be read or why it cannot, unless `end` comes before.
        """
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link(self, peer, self._tls)
            task = asyncio.get_running_loop().create_task(link.run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._rooms[room] = link
        link.call(_Wanted(room=room, parked=parked, settle=settle))

    def end(self, end: pull_pb2.PullEnd) -> None:
        """Say that a room was read, or with an error that it will not be. Unknown: no effect."""
        link = self._rooms.pop(end.room, None)
        if link is not None:
            link.end(end)

    def give_up(self, room: int, reason: TandemError) -> None:
        """Read nothing of a room, and answer nothing from what was read."""
        self.end(pull_pb2.PullEnd(room=room, error=reason.to_proto()))

    def forget(self, room: int) -> None:
        self._rooms.pop(room, None)

    def drop(self, peer: str) -> None:
        del self._links[peer]

    async def close(self) -> None:
        """Hang up on every peer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __len__(self) -> int:
        """Rooms that wait, or are read."""
        return len(self._rooms)


class _Link:
    """The stream to one prefill engine."""

    def __init__(self, client: PullClient, peer: str, tls: PeerTls | None) -> None:
        self._client = client
        self._peer = peer
        self._tls = tls
        self._outbox = Outbox(self._take)
        self._draft = pull_pb2.PullCalls()
        self._rooms: dict[int, _Wanted] = {}
        self._stale: Counter[int] = Counter()
        """Answers to come to calls that were ended, by room: whoever calls for a parked room anew
        must not read by them.
        """

    def call(self, wanted: _Wanted) -> None:
        self._rooms[wanted.room] = wanted
        wanted.called = time.monotonic()
        self._draft.calls.add(room=wanted.room, parked=wanted.parked)
        self._outbox.notify()

    def end(self, end: pull_pb2.PullEnd) -> None:
        wanted = self._rooms.pop(end.room, None)
        if wanted is None:
            return
        if not wanted.readable:
            self._stale[end.room] += 1
        self._draft.ends.append(end)
        self._outbox.notify()

    async def run(self) -> None:
        error = KvTransferError("the prefill engine closed the hand-over stream", phase=_PHASE)
        try:
            async with open_channel(
                self._peer,
                self._tls,
                role="prefill",
                silence_seconds=STREAM_SILENCE_SECONDS,
            ) as channel:
                call = pull_pb2_grpc.KvPullStub(channel).Exchange(self._outbox.messages())
                await self._read(call)
        except grpc.aio.AioRpcError as broken:
            error = KvTransferError(
                f"the hand-over stream to {self._peer} broke: {broken.code().name.lower()}"
                f" ({broken.details()})",
                phase=_PHASE,
            )
        except KvTransferError as refused:
            error = refused
        finally:
            self._broken(error)

    async def _read(self, call: AsyncIterable[pull_pb2.PullAnswers | None]) -> None:
        """Raises KvTransferError where the peer says what cannot be read."""
        async for answers in call:
            if answers is None:
                raise KvTransferError("the prefill engine said what cannot be read")
            for ready in answers.ready:
                check_ready(ready)
                self._on_ready(ready)
            for failed in answers.failed:
                self._on_failed(failed.room, errors.from_proto(failed.error))

    def _on_ready(self, ready: pull_pb2.PullReady) -> None:
        if (wanted := self._waiting(ready.room)) is not None:
            wanted.readable = True
            wanted.settle(Readable(ready, wanted.called + ready.valid_ms / 1000))

    def _on_failed(self, room: int, error: TandemError) -> None:
        if (wanted := self._waiting(room)) is not None:
            del self._rooms[room]
            self._client.forget(room)
            wanted.settle(error)

    def _waiting(self, room: int) -> _Wanted | None:
        """Take an answer for a room. Returns who waits for it; None: its call was ended."""
        if room in self._stale:
            self._stale[room] -= 1
            if not self._stale[room]:
                del self._stale[room]
            return None
        wanted = self._rooms.get(room)
        return None if wanted is None or wanted.readable else wanted

    def _broken(self, error: KvTransferError) -> None:
        """What is being read goes on: prefill keeps the KV until its lease ends."""
        self._client.drop(self._peer)
        self._outbox.stop()
        waiting = [wanted for wanted in self._rooms.values() if not wanted.readable]
        if self._rooms:
            log.warning(
                "hand-over stream lost",
                extra={"peer": self._peer, "reason": error.message, "count": len(self._rooms)},
            )
        for room in self._rooms:
            self._client.forget(room)
        self._rooms.clear()
        for wanted in waiting:
            wanted.settle(error)

    def _take(self) -> pull_pb2.PullCalls:
        calls, self._draft = self._draft, pull_pb2.PullCalls()
        return calls
