"""Messages that are handed on in the turn in which they come: as those that are read, in order, up
to the same ends, and in bounds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from echo_service import KINDS, Echo, Stub, open_channel, serving

from tandem_loop_grpc.frames import MESSAGE_HEAD
from tandem_loop_grpc.stream import Stream
from tandem_loop_grpc.work import ConnectionWork

PATIENCE = 60.0
Code = grpc.StatusCode


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture(params=KINDS)
async def channel(request: Any, echo: Echo) -> AsyncIterator[Any]:
    async with serving(request.param, echo) as port, open_channel("ours", port) as opened:
        yield opened


def keep(into: list[Any], until: object = ...) -> Callable[[Any], object]:
    """Takes messages, up to that one."""

    def take(message: Any) -> object:
        into.append(message)
        return "it was there" if message == until else None

    return take


@pytest.mark.promise("S5-446")
async def test_all_messages_are_handed_on_in_order(channel: Any) -> None:
    sent, came = [b"%d" % number * (number % 7) for number in range(2_000)], []

    async def requests() -> AsyncIterator[bytes]:
        for message in sent:
            yield message

    async with asyncio.timeout(PATIENCE):
        assert await Stub(channel).talk(requests()).hand_on(keep(came)) is None
    assert came == sent


@pytest.mark.promise("S5-446")
async def test_what_had_come_before_is_handed_on_first(channel: Any) -> None:
    call, came = Stub(channel).many(b"5"), []
    assert await call.read() == b"0"
    await asyncio.sleep(0.1)
    assert await call.hand_on(keep(came)) is None
    assert came == [b"1", b"2", b"3", b"4"]


@pytest.mark.promise("S5-446")
async def test_an_answer_ends_it_and_what_follows_can_be_read(channel: Any) -> None:
    call, came = Stub(channel).many(b"9"), []
    assert await call.hand_on(keep(came, until=b"6")) == "it was there"
    assert came == [b"%d" % number for number in range(7)]
    assert [await call.read() for _ in range(3)] == [b"7", b"8", grpc.aio.EOF]


@pytest.mark.promise("S5-446")
async def test_what_a_taker_raises_is_raised_and_it_gets_nothing_more(channel: Any) -> None:
    call, came = Stub(channel).many(b"9"), []

    def take(message: bytes) -> None:
        came.append(message)
        if message == b"3":
            raise LookupError("no such thing")

    with pytest.raises(LookupError):
        await call.hand_on(take)
    await asyncio.sleep(0.1)
    assert came == [b"0", b"1", b"2", b"3"]
    assert not call.done()


@pytest.mark.promise("S5-446")
async def test_how_the_call_ended_comes_after_its_messages(channel: Any) -> None:
    call, came = Stub(channel).talk(), []
    for message in (b"first", b"abort"):
        await call.write(message)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.hand_on(keep(came))
    assert (came, caught.value.code()) == ([b"first"], Code.ABORTED)
    assert call.done()


@pytest.mark.promise("S5-446")
async def test_a_call_whose_taker_s_task_is_cancelled_is_over(channel: Any, echo: Echo) -> None:
    call = Stub(channel).talk()
    taking = asyncio.create_task(call.hand_on(keep([])))
    await call.write(b"hold")
    await asyncio.sleep(0.1)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert call.done()
    await asyncio.wait_for(echo.ended.wait(), PATIENCE)


@pytest.mark.promise("S5-446")
@pytest.mark.parametrize("after", [0, 20])
async def test_a_taker_may_cancel_its_call(channel: Any, after: int) -> None:
    """Also `after` so many other calls, when all of the answer has come."""
    call, came = Stub(channel).many(b"100"), []
    for _ in range(after):
        await Stub(channel).one(b"")

    def take(message: bytes) -> None:
        came.append(message)
        call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call.hand_on(take)
    assert came == [b"0"]


# --- a stream by itself ---------------------------------------------------------------------------


def packed(*messages: bytes) -> bytes:
    return b"".join(MESSAGE_HEAD.pack(0, len(each)) + each for each in messages)


class Bench:
    """A stream whose connection is the test."""

    def __init__(self) -> None:
        self.connection: Any = SimpleNamespace(
            first_window=1 << 16,
            unread=0,
            partial=0,
            most_partial=1 << 20,
            control=lambda data: None,
            open_window=lambda: None,
            work=ConnectionWork(),
        )
        self.stream = Stream(self.connection, 1, most_bytes=1 << 20)

    def receive(self, *messages: bytes) -> None:
        data = packed(*messages)
        self.stream.receive(data, len(data))


@pytest.mark.promise("S5-446")
async def test_many_messages_at_once_leave_others_their_turns() -> None:
    bench, came = Bench(), []
    handing = asyncio.create_task(bench.stream.hand_on(keep(came)))
    await asyncio.sleep(0)
    sent = [b"%d" % number for number in range(1_000)]
    for begin in range(0, len(sent), 250):  # frames that come in one turn
        bench.receive(*sent[begin : begin + 250])
    seen = [len(came)]
    while seen[-1] < len(sent):
        await asyncio.sleep(0)
        seen.append(len(came))
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 64
    assert seen[0] <= 64
    assert came == sent
    bench.stream.receive_end()
    assert await handing is None


@pytest.mark.promise("S5-446")
@pytest.mark.parametrize("then", ["answers", "raises", "goes on"])
async def test_a_taker_may_cancel_whoever_hands_on(then: str) -> None:
    bench, came = Bench(), []

    def take(message: bytes) -> object:
        came.append(message)
        handing.cancel()
        if then == "raises":
            raise LookupError("no such thing")
        return "enough" if then == "answers" else None

    handing = asyncio.create_task(bench.stream.hand_on(take))
    await asyncio.sleep(0)
    bench.receive(b"one", b"two")
    with pytest.raises(asyncio.CancelledError):
        await handing
    assert came == [b"one"]
    bench.receive(b"three")
    assert await bench.stream.read() == b"two"
