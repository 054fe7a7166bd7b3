"""Prefill's end of the words around a hand-over: who has called for which room, which rooms have
their KV ready, and until when it stays.

The rule on which every answer rests: KV that was said to be ready is kept until decode has ended
the room, or its lease is over. Neither a stream that breaks nor a request that is cancelled frees
the pages before that, because decode may be reading.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem import errors
from tandem.byte_budget import ByteBudget
from tandem.engine.base import Logprobs
from tandem.engine.rooms import MOST_ROOMS, EndedRooms, KeyedTimers
from tandem.engine.streams import ServedStream, StreamServicer, listen
from tandem.errors import KvTransferError, TandemError, VoucherError
from tandem.v1 import common_pb2, pull_pb2, pull_pb2_grpc
from tandem.wire.grpc import Server
from tandem.wire.tls import PeerTls
from tandem_loop_grpc.connections import ConnectionLimits
from tandem_vllm.words import check_calls

_PHASE = common_pb2.PHASE_PREFILL


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """KV of one room that lies in the engine, for whoever calls.

    `settle` is called once, with what decode said when it had read, or with why it never will,
    unless the room was withdrawn. `free` is called once, when nobody will read the pages any more;
    with True where decode has read, of which the engine knows.
    """

    room: int
    params: Mapping[str, Any]
    lease_ends: float
    """By time.monotonic(), when the engine may use the pages for something else."""
    wait_seconds: float
    """For a call."""
    first_token: int
    logprobs: Logprobs | None
    cached_tokens: int
    tag: bytes
    """Whose KV it is: see tandem.engine.kv_tag; empty: decode does not ask."""
    settle: Callable[[pull_pb2.PullEnd | TandemError], None] | None
    free: Callable[[bool], None]
    reader: DecodeLink | None = field(default=None, init=False)
    """Who was told that the room is ready."""

    def end(self, result: pull_pb2.PullEnd | TandemError) -> None:
        """Settle, unless that was done."""
        settle, self.settle = self.settle, None
        if settle is not None:
            settle(result)


@dataclass(slots=True, frozen=True)
class _Call:
    link: DecodeLink
    at: float
    """When the call was read, by time.monotonic()."""


class PullServer:
    """All rooms of a prefill engine, over all its decode peers."""

    def __init__(
        self,
        *,
        wait_seconds: float,
        tls: PeerTls | None,
        limits: ConnectionLimits | None,
        budget: ByteBudget | None,
    ) -> None:
        """`wait_seconds`: how long a call waits for its room."""
        self._wait_seconds = wait_seconds
        self._server = Server(tls, caller="decode", limits=limits, budget=budget)
        self._held: dict[int, Held] = {}
        self._calls: dict[int, _Call] = {}
        """Rooms that decode wants, and that are not ready."""
        self._ended = EndedRooms(wait_seconds)
        """Rooms that ended before decode called for them."""
        self._held_timers: KeyedTimers[int] = KeyedTimers()
        self._call_timers: KeyedTimers[int] = KeyedTimers()
        self._links: set[DecodeLink] = set()

    async def start(self, host: str, port: int) -> str:
        """Listen, and return where: "host:port". Raises ConfigError."""
        self._server.add(
            lambda server: pull_pb2_grpc.add_KvPullServicer_to_server(_Servicer(self), server),
            "tandem.v1.KvPull",
        )
        return await listen(self._server, host, port)

    def is_called(self, room: int) -> bool:
        """Whether decode was told that the room is ready."""
        held = self._held.get(room)
        return held is not None and held.reader is not None

    def hold(self, held: Held) -> None:
        """The room's KV is there."""
        ended = self._ended.pop(held.room)
        if ended is not None:
            held.free(False)
            held.end(ended)
            return
        self._held[held.room] = held
        call = self._calls.pop(held.room, None)
        if call is None:
            reason = "decode called for the KV too late, or never"
            self._held_timers.set(held.room, held.wait_seconds, lambda: self._unread(held, reason))
        else:
            self._call_timers.stop(held.room)
            self._tell(held, call)

    def withdraw(self, room: int, reason: TandemError) -> None:
        """The request has ended here. KV that nobody was told of is free at once."""
        held = self._held.get(room)
        if held is not None:
            held.settle = None
            if held.reader is None:
                self._forget(held)
                held.free(False)
                self._ended.add(room, reason)
            return
        call = self._calls.pop(room, None)
        if call is None:
            self._ended.add(room, reason)
        else:
            self._call_timers.stop(room)
            call.link.fail(room, reason)

    def on_call(self, link: DecodeLink, call: pull_pb2.PullCall) -> None:
        room = call.room
        ended = self._ended.pop(room)
        if ended is not None:
            link.fail(room, ended)
        elif self.is_called(room) or room in self._calls:
            link.fail(room, KvTransferError("the room is called for twice", phase=_PHASE))
        elif (held := self._held.get(room)) is not None:
            self._tell(held, _Call(link, time.monotonic()))
        elif call.parked:
            gone = "its KV is not kept any more: it was used, or its time is over"
            link.fail(room, VoucherError(gone, phase=_PHASE))
        elif len(self._calls) >= MOST_ROOMS:
            link.fail(room, KvTransferError("too many rooms wait for prefill", phase=_PHASE))
        else:
            self._calls[room] = _Call(link, time.monotonic())
            self._call_timers.set(room, self._wait_seconds, lambda: self._unready(room))

    def on_end(self, link: DecodeLink, end: pull_pb2.PullEnd) -> None:
        """Decode reads no more. The word of anybody but the room's reader is none."""
        call = self._calls.get(end.room)
        if call is not None and call.link is link:
            del self._calls[end.room]
            self._call_timers.stop(end.room)
            self._ended.add(end.room, _given_up(end))
            link.fail(end.room, _given_up(end))  # each call has an answer
            return
        held = self._held.get(end.room)
        if held is None or held.reader is not link:
            return
        self._forget(held)
        unread = end.HasField("error")
        held.free(not unread)
        held.end(_given_up(end) if unread else end)

    def add_link(self, link: DecodeLink) -> None:
        self._links.add(link)

    def drop_link(self, link: DecodeLink) -> None:
        """The stream is gone. What its decode engine may be reading stays until the lease ends."""
        self._links.discard(link)
        for room in [room for room, call in self._calls.items() if call.link is link]:
            del self._calls[room]
            self._call_timers.stop(room)
        lost = KvTransferError("the hand-over stream from decode broke", phase=_PHASE)
        for held in [held for held in self._held.values() if held.reader is link]:
            held.end(lost)

    async def close(self) -> None:
        """Hang up on every peer, and settle what is held."""
        for link in self._links:
            link.cut("the prefill engine is closing")
        await self._server.stop(0)
        self._held_timers.clear()
        self._call_timers.clear()
        for held in list(self._held.values()):
            held.end(KvTransferError("the prefill engine is closing", phase=_PHASE))
        self._held.clear()
        self._calls.clear()
        self._ended.clear()

    def __len__(self) -> int:
        """Rooms that are held or called for."""
        return len(self._held) + len(self._calls)

    def _tell(self, held: Held, call: _Call) -> None:
        left = held.lease_ends - time.monotonic()
        valid = held.lease_ends - call.at
        reason = "decode read no KV within the lease"
        if left <= 0:
            call.link.fail(held.room, KvTransferError("the room's lease is over", phase=_PHASE))
            self._unread(held, reason)
            return
        held.reader = call.link
        self._held_timers.set(held.room, left, lambda: self._unread(held, reason))
        ready = pull_pb2.PullReady(
            room=held.room,
            valid_ms=int(valid * 1000),
            params=json.dumps(held.params).encode(),
            first_token=held.first_token,
            cached_tokens=held.cached_tokens,
            tag=held.tag,
        )
        if held.logprobs is not None:
            ready.logprob.extend(held.logprobs.chosen)
            for token_id, value in (pair for row in held.logprobs.top for pair in row):
                ready.top_token_id.append(token_id)
                ready.top_logprob.append(value)
        call.link.ready(ready)

    def _forget(self, held: Held) -> None:
        del self._held[held.room]
        self._held_timers.stop(held.room)

    def _unread(self, held: Held, reason: str) -> None:
        """The time in which the KV could be read is over."""
        self._forget(held)
        held.free(False)
        held.end(KvTransferError(reason, phase=_PHASE))

    def _unready(self, room: int) -> None:
        call = self._calls.pop(room)
        call.link.fail(room, KvTransferError("prefill was not ready in time", phase=_PHASE))


class DecodeLink(ServedStream):
    """The stream from one decode engine, as prefill serves it."""

    def __init__(self, rooms: PullServer) -> None:
        super().__init__(rooms)
        self._draft = pull_pb2.PullAnswers()

    def ready(self, ready: pull_pb2.PullReady) -> None:
        self._draft.ready.append(ready)
        self._outbox.notify()

    def fail(self, room: int, error: TandemError) -> None:
        self._draft.failed.add(room=room, error=error.to_proto())
        self._outbox.notify()

    def _on_message(self, message: pull_pb2.PullCalls) -> None:
        check_calls(message)
        for call in message.calls:
            self._rooms.on_call(self, call)
        for end in message.ends:
            self._rooms.on_end(self, end)

    def _take(self) -> pull_pb2.PullAnswers:
        answers, self._draft = self._draft, pull_pb2.PullAnswers()
        return answers


class _Servicer(StreamServicer, pull_pb2_grpc.KvPullServicer):  # type: ignore[misc]
    """See StreamServicer."""

    link = DecodeLink


def _given_up(end: pull_pb2.PullEnd) -> TandemError:
    said = errors.from_proto(end.error)
    return KvTransferError(f"decode gave the room up: {said.message}", phase=_PHASE)
