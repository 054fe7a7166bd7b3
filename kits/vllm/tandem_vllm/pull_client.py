"""Decode's end of the words around a hand-over: it calls for a room, and says what it has read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tandem import errors
from tandem.engine.streams import DialledStream
from tandem.errors import KvTransferError, TandemError
from tandem.tasks import Tasks
from tandem.v1 import pull_pb2, pull_pb2_grpc
from tandem.wire.tls import PeerTls
from tandem_vllm.words import check_ready

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
        self._tasks = Tasks()

    def call(self, peer: str, room: int, *, parked: bool, settle: Settle) -> None:
        """Want the KV of a room of the prefill engine at `peer`, "host:port". `settle` is told once
        that the KV can be read or why it cannot, unless `end` comes before.
        """
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = _Link(self, peer, self._tls)
            self._tasks.start(link.run(), name=f"kv link to {peer}")
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
        await self._tasks.close()

    def __len__(self) -> int:
        """Rooms that wait, or are read."""
        return len(self._rooms)


class _Link(DialledStream):
    """The stream to one prefill engine."""

    stub = pull_pb2_grpc.KvPullStub

    def __init__(self, client: PullClient, peer: str, tls: PeerTls | None) -> None:
        super().__init__(peer, tls)
        self._client = client
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

    def _on_answers(self, answers: pull_pb2.PullAnswers) -> None:
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
        waiting = [wanted for wanted in self._rooms.values() if not wanted.readable]
        self._log_lost(error, len(self._rooms))
        for room in self._rooms:
            self._client.forget(room)
        self._rooms.clear()
        for wanted in waiting:
            wanted.settle(error)

    def _take(self) -> pull_pb2.PullCalls:
        calls, self._draft = self._draft, pull_pb2.PullCalls()
        return calls
