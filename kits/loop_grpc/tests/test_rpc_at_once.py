"""What nearly every read brings, a frame that is one message, takes a shorter way than all else. By
both ways the same is taken, answered, counted and refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from one_case import one_case
from served_end import Recorder

from tandem_loop_grpc import frames
from tandem_loop_grpc.connection import PeerConnection
from tandem_loop_grpc.dialled import Dialled
from tandem_loop_grpc.frames import MESSAGE_HEAD, frame, message_frame
from tandem_loop_grpc.stream import WINDOW, Stream, StreamError

pytestmark = pytest.mark.promise("S5-446")

MOST_BYTES = 2_000
STREAM = 1
_UNKNOWN_KIND = 0x20


def at_once(connection: PeerConnection, data: bytes) -> None:
    connection.data_received(data)


def in_two(connection: PeerConnection, data: bytes) -> None:
    """No read of these is a whole frame."""
    connection.data_received(data[:5])
    connection.data_received(data[5:])


Read = Callable[[PeerConnection, bytes], None]


class Bench:
    """A call whose messages are handed on."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.connection = Dialled(most_bytes=most_bytes, silence_seconds=60)
        self.wire = Recorder()
        self.connection.connection_made(self.wire)
        self.stream: Stream = self.connection.begin(())
        self.connection.data_received(frames.settings({}))
        self.wire.sent.clear()
        self.came: list[bytes] = []
        self.handing = asyncio.create_task(self.stream.hand_on(self.take))

    def take(self, message: bytes) -> object:
        self.came.append(message)
        return "enough" if message == b"last" else None

    async def outcome(self) -> tuple[Any, ...]:
        """All that can be seen of it."""
        await asyncio.sleep(0)
        how: Any = "it goes on"
        if self.handing.done():
            error = self.handing.exception()
            how = str(error) if error else self.handing.result()
        self.handing.cancel()
        left = []
        while self.stream._messages:
            left.append(await self.stream.read())
        connection = self.connection
        counted = connection._received, connection.partial, self.stream._unread
        return self.came, left, how, bytes(self.wire.sent), connection.over, counted


def _data(payload: bytes, flags: int = 0, number: int = STREAM) -> bytes:
    return frame(frames.DATA, flags, number, payload)


def _message(message: bytes, compressed: int = 0) -> bytes:
    return MESSAGE_HEAD.pack(compressed, len(message)) + message


CASES: dict[str, list[bytes]] = {
    "a message": [message_frame(STREAM, b"one")],
    "an empty message": [message_frame(STREAM, b"")],
    "the largest message": [message_frame(STREAM, bytes(MOST_BYTES))],
    "too large a message": [message_frame(STREAM, bytes(MOST_BYTES + 1))],
    "two messages in a frame": [_data(_message(b"one") + _message(b"two"))],
    "two frames in a read": [message_frame(STREAM, b"one") + message_frame(STREAM, b"two")],
    "a frame and a half": [message_frame(STREAM, b"one") + b"\0\0\0\0\0"],
    "a part of a message": [_data(_message(b"hundred")[:8])],
    "a message in parts": [_data(_message(b"hundred")[:8]), _data(_message(b"hundred")[8:])],
    "what looks like a message inside of one": [
        _data(_message(_message(b"one"))[:5]),
        message_frame(STREAM, b"one"),
    ],
    "less than a message's head": [_data(b"\0\0")],
    "an empty frame": [_data(b"")],
    "a message and the end": [_data(_message(b"one"), frames.END_STREAM)],
    "a padded message": [_data(b"\x03" + _message(b"one") + b"\0\0\0", frames.PADDED)],
    "a message that is padded by what it seems to say": [
        _data(_message(b"one!"), frames.PADDED),
    ],
    "a compressed message": [_data(_message(b"one", compressed=1))],
    "a frame of a kind that nobody knows": [frame(_UNKNOWN_KIND, 0, STREAM, _message(b"one"))],
    "a stream that never was": [message_frame(STREAM + 2, b"one")],
    "a reserved bit": [_data(_message(b"one"), number=STREAM | 1 << 31)],
    "a message between headers": [
        frame(frames.HEADERS, 0, STREAM, b""),
        message_frame(STREAM, b"one"),
    ],
    "what comes after an answer": [
        message_frame(STREAM, b"last"),
        message_frame(STREAM, b"one"),
    ],
    "what comes after the stream": [
        frames.reset(STREAM, frames.Code.CANCEL),
        message_frame(STREAM, b"one"),
    ],
    "what the stream's window has to be opened for": [
        message_frame(STREAM, bytes(MOST_BYTES)) for _ in range(WINDOW // MOST_BYTES + 1)
    ],
    "what the connection's window has to be opened for": [
        message_frame(STREAM, bytes(MOST_BYTES)) for _ in range(5 * WINDOW // MOST_BYTES)
    ],
}


@one_case("case", CASES)
async def test_both_ways_come_to_the_same(case: str) -> None:
    outcomes = []
    for read in (at_once, in_two):
        bench = Bench()
        await asyncio.sleep(0)
        for data in CASES[case]:
            read(bench.connection, data)
            await asyncio.sleep(0)  # a turn, as a loop takes one between two reads
        outcomes.append(await bench.outcome())
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("read", [at_once, in_two])
@pytest.mark.parametrize("over", [0, 1])
async def test_no_frame_is_larger_than_http_has_it(read: Read, over: int) -> None:
    bench = Bench(most_bytes=1 << 20)
    await asyncio.sleep(0)
    largest = frames.LEAST_FRAME - frames.MESSAGE_HEAD_BYTES
    read(bench.connection, message_frame(STREAM, bytes(largest + over)))
    assert (len(bench.came), bench.connection.over) == (1 - over, bool(over))


async def test_a_message_takes_the_shorter_way(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    await asyncio.sleep(0)
    monkeypatch.setattr(bench.connection._reader, "receive", None)
    at_once(bench.connection, message_frame(STREAM, b"one"))
    assert bench.came == [b"one"]


@pytest.mark.parametrize("read", [at_once, in_two])
async def test_a_task_that_is_cancelled_is_handed_nothing_more(read: Read) -> None:
    bench = Bench()
    await asyncio.sleep(0)
    bench.handing.cancel()
    read(bench.connection, message_frame(STREAM, b"one"))
    assert bench.came == []
    await asyncio.wait({bench.handing})
    assert await bench.stream.read() == b"one"


@pytest.mark.parametrize("read", [at_once, in_two])
async def test_what_comes_while_a_taker_is_at_a_message_is_handed_on_behind_it(read: Read) -> None:
    bench, order = Bench(), []
    bench.handing.cancel()

    def take(message: bytes) -> None:
        order.append(b"+" + message)
        if message == b"one":
            bench.stream.receive(_message(b"two"), 8)
            bench.stream.fail(StreamError(grpc.StatusCode.UNAVAILABLE, "gone"))
        order.append(b"-" + message)

    handing = asyncio.create_task(bench.stream.hand_on(take))
    await asyncio.sleep(0)
    read(bench.connection, message_frame(STREAM, b"one"))
    with pytest.raises(StreamError):
        await asyncio.wait_for(handing, 10)
    assert order == [b"+one", b"-one", b"+two", b"-two"]


@pytest.mark.parametrize("read", [at_once, in_two])
async def test_what_comes_while_a_taker_rests_a_turn_is_handed_on_behind_the_rest(
    read: Read,
) -> None:
    bench = Bench()
    await asyncio.sleep(0)
    sent = [b"%d" % number for number in range(100)]
    read(bench.connection, _data(b"".join(map(_message, sent))))
    read(bench.connection, message_frame(STREAM, b"behind"))
    assert len(bench.came) < len(sent)
    await asyncio.sleep(0.01)
    assert bench.came == [*sent, b"behind"]


async def test_what_comes_while_a_connection_rests_a_turn_waits_for_it() -> None:
    """More frames than a turn takes, and a whole one behind them."""
    bench = Bench()
    await asyncio.sleep(0)
    sent = [b"%d" % number for number in range(1_000)]
    at_once(bench.connection, b"".join(message_frame(STREAM, each) for each in sent[:-1]))
    at_once(bench.connection, message_frame(STREAM, sent[-1]))
    assert bench.wire.paused
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(bench.came) == len(sent)
    assert bench.came == sent
