"""The words around a hand-over: over a real stream, and at each end with a peer that is not there.
The KV itself is nobody's here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from vllm_stand_ins import until

from tandem.engine import kv_tag
from tandem.engine.base import Logprobs
from tandem.errors import KvTransferError, TandemError
from tandem.v1 import pull_pb2
from tandem_vllm import words
from tandem_vllm.pull_client import PullClient, Readable
from tandem_vllm.pull_server import DecodeLink, Held, PullServer

ROOM = 7
LEASE = 30.0
PATIENCE = 10.0


@dataclass
class Prefill:
    """A prefill engine's server, and what was said of its rooms."""

    server: PullServer
    peer: str = ""
    settled: list[Any] = field(default_factory=list)
    freed: list[bool] = field(default_factory=list)

    def hold(self, room: int = ROOM, *, lease: float = LEASE, wait: float = LEASE) -> None:
        self.server.hold(
            Held(
                room=room,
                params={"do_remote_prefill": True, "remote_block_ids": [[1, 2]]},
                lease_ends=time.monotonic() + lease,
                wait_seconds=wait,
                first_token=11,
                logprobs=Logprobs(chosen=[-0.5], top=[[(11, -0.5), (3, -2.0)]]),
                cached_tokens=64,
                tag=b"t" * kv_tag.BYTES,
                settle=self.settled.append,
                free=self.freed.append,
            )
        )


@dataclass
class Decode:
    client: PullClient
    said: asyncio.Queue[Readable | TandemError] = field(default_factory=asyncio.Queue)

    def call(self, peer: str, room: int = ROOM, *, parked: bool = False) -> None:
        self.client.call(peer, room, parked=parked, settle=self.said.put_nowait)

    async def answer(self) -> Readable | TandemError:
        async with asyncio.timeout(PATIENCE):
            return await self.said.get()


@pytest.fixture
async def prefill() -> AsyncIterator[Prefill]:
    server = PullServer(wait_seconds=LEASE, tls=None, limits=None, budget=None)
    peer = await server.start("127.0.0.1", 0)
    yield Prefill(server, peer)
    await server.close()


@pytest.fixture
async def decode() -> AsyncIterator[Decode]:
    client = PullClient(None)
    yield Decode(client)
    await client.close()


@pytest.mark.promise("S5-725")
@pytest.mark.parametrize("called_first", [True, False])
async def test_a_room_is_told_once_and_settles_by_what_decode_read(
    prefill: Prefill, decode: Decode, *, called_first: bool
) -> None:
    before = time.monotonic()
    if called_first:
        decode.call(prefill.peer)
        await until(lambda: len(prefill.server) == 1)
        prefill.hold()
    else:
        prefill.hold()
        decode.call(prefill.peer)
    said = await decode.answer()
    assert isinstance(said, Readable)
    assert said.ready.first_token == 11
    assert list(said.ready.top_token_id) == [11, 3]
    assert said.ready.cached_tokens == 64
    assert before < said.until <= time.monotonic() + LEASE
    assert (prefill.settled, prefill.freed) == ([], [])
    decode.client.end(pull_pb2.PullEnd(room=ROOM, bytes=4096, seconds=0.5, transport="nixl"))
    await until(lambda: prefill.settled)
    assert (prefill.settled[0].bytes, prefill.freed) == (4096, [True])
    assert len(prefill.server) == len(decode.client) == 0


@pytest.mark.promise("S5-726")
async def test_kv_that_decode_may_read_stays_when_its_request_ends_or_the_stream_breaks(
    prefill: Prefill, decode: Decode
) -> None:
    prefill.hold()
    decode.call(prefill.peer)
    await decode.answer()
    prefill.server.withdraw(ROOM, KvTransferError("cancelled"))
    assert prefill.freed == []
    prefill.hold(8)
    decode.call(prefill.peer, 8)
    await decode.answer()
    await decode.client.close()
    await until(lambda: prefill.settled)
    assert isinstance(prefill.settled[0], KvTransferError)
    assert prefill.freed == []
    assert len(prefill.server) == 2


@pytest.mark.promise("S5-726")
async def test_kv_that_nobody_was_told_of_is_free_with_its_request(
    prefill: Prefill, decode: Decode
) -> None:
    prefill.hold()
    prefill.server.withdraw(ROOM, KvTransferError("cancelled here"))
    assert (prefill.settled, prefill.freed) == ([], [False])
    decode.call(prefill.peer)
    said = await decode.answer()
    assert isinstance(said, KvTransferError)
    assert "cancelled here" in said.message


@pytest.mark.promise("S5-727")
async def test_a_lease_that_runs_out_frees_and_its_call_is_told_how_long_it_holds(
    prefill: Prefill, decode: Decode
) -> None:
    """Decode counts from before its call, so that the time of travel shortens what it believes."""
    prefill.hold(lease=1.0)
    began = time.monotonic()
    decode.call(prefill.peer)
    said = await decode.answer()
    assert isinstance(said, Readable)
    assert said.until <= began + 1.0 + 0.01
    await until(lambda: prefill.freed)
    assert prefill.freed == [False]
    assert "within the lease" in prefill.settled[0].message
    decode.client.end(pull_pb2.PullEnd(room=ROOM, bytes=1))
    decode.call(prefill.peer, 9)
    prefill.hold(9)
    await decode.answer()
    assert len(prefill.settled) == 1  # the late word was of no room


async def test_a_lease_that_is_over_is_told_to_nobody(prefill: Prefill, decode: Decode) -> None:
    decode.call(prefill.peer)
    await until(lambda: len(prefill.server) == 1)
    prefill.hold(lease=-1.0)
    said = await decode.answer()
    assert isinstance(said, KvTransferError)
    assert "lease is over" in said.message
    assert (prefill.freed, len(prefill.server)) == ([False], 0)
    assert len(prefill.settled) == 1


@pytest.mark.promise("S5-726")
async def test_an_answer_to_a_call_that_was_ended_is_not_the_next_calls(
    prefill: Prefill, decode: Decode
) -> None:
    """A voucher that is used again at once: the KV of the first answer is free by then."""
    prefill.hold()
    decode.call(prefill.peer, parked=True)
    decode.client.give_up(ROOM, KvTransferError("the client left"))
    decode.call(prefill.peer, parked=True)
    assert isinstance(await decode.answer(), KvTransferError)
    assert prefill.freed == [False]
    decode.call(prefill.peer)
    await until(lambda: len(prefill.server) == 1)
    decode.client.give_up(ROOM, KvTransferError("the client left"))
    await until(lambda: len(prefill.server) == 0)
    decode.call(prefill.peer, parked=True)
    said = await decode.answer()
    assert isinstance(said, KvTransferError)
    assert len(decode.client) == 0


@pytest.mark.promise("S5-728")
async def test_a_room_is_read_by_one_alone(prefill: Prefill, decode: Decode) -> None:
    prefill.hold()
    decode.call(prefill.peer)
    assert isinstance(await decode.answer(), Readable)
    other = Decode(PullClient(None))
    other.call(prefill.peer)
    said = await other.answer()
    assert isinstance(said, KvTransferError)
    assert "twice" in said.message
    other.client.give_up(ROOM, KvTransferError("not its to give up"))
    await other.client.close()
    assert (prefill.settled, prefill.freed) == ([], [])


async def test_what_decode_gives_up_is_free_and_says_why(prefill: Prefill, decode: Decode) -> None:
    prefill.hold()
    decode.call(prefill.peer)
    await decode.answer()
    decode.client.give_up(ROOM, KvTransferError("no time left"))
    await until(lambda: prefill.settled)
    assert prefill.freed == [False]
    assert "no time left" in prefill.settled[0].message


async def test_a_room_given_up_before_its_kv_is_there_is_free_at_once(
    prefill: Prefill, decode: Decode
) -> None:
    decode.call(prefill.peer)
    await until(lambda: len(prefill.server) == 1)
    decode.client.give_up(ROOM, KvTransferError("the client left"))
    await until(lambda: len(prefill.server) == 0)
    prefill.hold()
    assert prefill.freed == [False]
    assert "the client left" in prefill.settled[0].message


async def test_nobody_calls_and_nothing_is_kept(prefill: Prefill) -> None:
    prefill.hold(wait=0.05)
    await until(lambda: prefill.settled)
    assert prefill.freed == [False]
    assert "too late, or never" in prefill.settled[0].message


async def test_a_peer_that_is_not_there_fails_who_waits_for_it(decode: Decode) -> None:
    decode.call("127.0.0.1:1")
    said = await decode.answer()
    assert isinstance(said, KvTransferError)
    assert len(decode.client) == 0


@pytest.mark.promise("S5-728")
def test_a_word_of_another_stream_ends_no_room() -> None:
    async def body() -> None:
        server = PullServer(wait_seconds=1, tls=None, limits=None, budget=None)
        prefill = Prefill(server)
        reader, other = DecodeLink(server), DecodeLink(server)
        prefill.hold()
        server.on_call(reader, pull_pb2.PullCall(room=ROOM))
        server.on_end(other, pull_pb2.PullEnd(room=ROOM, bytes=1))
        assert prefill.settled == []
        server.on_end(reader, pull_pb2.PullEnd(room=ROOM, bytes=1))
        assert len(prefill.settled) == 1

    asyncio.run(body())


@pytest.mark.parametrize(
    "message",
    [
        pull_pb2.PullCalls(calls=[pull_pb2.PullCall(room=0)]),
        pull_pb2.PullCalls(ends=[pull_pb2.PullEnd(room=0)]),
        pull_pb2.PullCalls(ends=[pull_pb2.PullEnd(room=1, seconds=-1)]),
        pull_pb2.PullCalls(ends=[pull_pb2.PullEnd(room=1, seconds=float("nan"))]),
        pull_pb2.PullCalls(ends=[pull_pb2.PullEnd(room=1, transport="x" * 65)]),
    ],
)
def test_what_no_decode_engine_says_is_refused(message: pull_pb2.PullCalls) -> None:
    with pytest.raises(KvTransferError):
        words.check_calls(message)


def test_as_many_rooms_as_a_message_may_have_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "MOST_ROOMS", 2)
    calls = [pull_pb2.PullCall(room=each) for each in (1, 2, 3)]
    words.check_calls(pull_pb2.PullCalls(calls=calls[:2]))
    with pytest.raises(KvTransferError):
        words.check_calls(pull_pb2.PullCalls(calls=calls))


@pytest.mark.parametrize(
    "ready",
    [
        pull_pb2.PullReady(logprob=[-1.0, -1.0]),
        pull_pb2.PullReady(top_token_id=[1]),
        pull_pb2.PullReady(top_token_id=[1], top_logprob=[float("nan")]),
        pull_pb2.PullReady(valid_ms=86_400_001),
        pull_pb2.PullReady(tag=b"t"),
        pull_pb2.PullReady(params=b" " * (words.MOST_PARAMS_BYTES + 1)),
    ],
)
def test_what_no_prefill_engine_says_is_refused(ready: pull_pb2.PullReady) -> None:
    with pytest.raises(KvTransferError):
        words.check_ready(ready)
