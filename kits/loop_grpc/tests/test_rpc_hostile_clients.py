"""What a client sends costs its own connection, or its own call: others of the server go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from echo_service import MOST_BYTES, Echo, Stub, open_channel, serving, unpack
from raw_peer import Peer, dialled, message
from served_end import served

from tandem_loop_grpc import frames, link, server, work
from tandem_loop_grpc.frames import Code, ProtocolError, frame
from tandem_loop_grpc.stream import WINDOW, Stream, StreamError

PATIENCE = 60.0
DATA, HEADERS, SETTINGS, PING = frames.DATA, frames.HEADERS, frames.SETTINGS, frames.PING


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def port(echo: Echo) -> AsyncIterator[int]:
    async with serving("ours", echo) as port:
        yield port


@pytest.fixture
async def beside(port: int) -> AsyncIterator[Callable[[], object]]:
    """Asks whether another client is still served."""
    async with open_channel("core", port) as channel:
        stub = Stub(channel)
        assert await stub.one(b"before", timeout=PATIENCE) == b"before"

        async def served() -> None:
            assert await stub.one(b"after", timeout=PATIENCE) == b"after"

        yield served


async def _send_for_ever(peer: Peer, data: bytes) -> None:
    while True:
        peer.send(data)
        await peer.writer.drain()


def _numbers(kind: int, flags: int, stream: int, size: int) -> Callable[[Peer], bytes]:
    return lambda _: frame(kind, flags, stream, bytes(size))


FORBIDDEN: dict[str, tuple[Code, Callable[[Peer], bytes]]] = {
    "a frame that is too large": (
        Code.FRAME_SIZE_ERROR,
        lambda _: frame(DATA, 0, 1, bytes(frames.LEAST_FRAME + 1)),
    ),
    "data of a stream that never was": (Code.PROTOCOL_ERROR, lambda _: frame(DATA, 0, 7, b"x")),
    "data of the connection": (Code.PROTOCOL_ERROR, lambda _: frame(DATA, 0, 0, b"x")),
    "a call of an even number": (Code.PROTOCOL_ERROR, lambda peer: peer.request(2)),
    "a call that begins again": (
        Code.PROTOCOL_ERROR,
        lambda peer: peer.request(1, "Talk") + peer.request(1, "Talk"),
    ),
    "data after its end": (
        Code.STREAM_CLOSED,
        lambda peer: (
            peer.request(1, "Talk")
            + frame(DATA, 0, 1, message(b"hold"))
            + frame(DATA, frames.END_STREAM, 1)
            + frame(DATA, 0, 1, b"x")
        ),
    ),
    "more padding than there is": (
        Code.PROTOCOL_ERROR,
        lambda peer: peer.request(1, "Talk") + frame(DATA, frames.PADDED, 1, b"\xff" + bytes(10)),
    ),
    "headers that cannot be read": (
        Code.COMPRESSION_ERROR,
        lambda _: frame(HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"),
    ),
    "headers that do not end": (
        Code.PROTOCOL_ERROR,
        lambda _: frame(HEADERS, 0, 1, b"\x82") + frame(PING, 0, 0, bytes(8)),
    ),
    "headers that go on without end": (
        Code.ENHANCE_YOUR_CALM,
        lambda _: frame(HEADERS, 0, 1, b"\x82") + frame(frames.CONTINUATION, 0, 1, bytes(9000)) * 8,
    ),
    "headers that go on with nothing": (
        Code.ENHANCE_YOUR_CALM,
        lambda _: frame(HEADERS, 0, 1, b"\x82") + frame(frames.CONTINUATION, 0, 1) * 3,
    ),
    "headers that go on elsewhere": (
        Code.PROTOCOL_ERROR,
        lambda _: frame(HEADERS, 0, 1, b"\x82") + frame(frames.CONTINUATION, 0, 3, b"\x82"),
    ),
    "headers that were not begun": (
        Code.PROTOCOL_ERROR,
        lambda _: frame(frames.CONTINUATION, 0, 1, b"\x82"),
    ),
    "headers that are larger than they look": (
        Code.ENHANCE_YOUR_CALM,
        # One long value, said again by its number in the table: a byte each.
        lambda peer: frame(
            HEADERS,
            frames.END_HEADERS,
            1,
            peer.headers(("a", "b" * 3000)) + b"\xbe" * 1000,
        ),
    ),
    "headers that resize their table for ever": (
        Code.COMPRESSION_ERROR,
        lambda _: frame(HEADERS, frames.END_HEADERS, 1, b"\x3f\xe1\x1f\x20" * 1000),
    ),
    "a priority of another size": (
        Code.FRAME_SIZE_ERROR,
        _numbers(HEADERS, frames.END_HEADERS | frames.WITH_PRIORITY, 1, 3),
    ),
    "settings of another size": (Code.FRAME_SIZE_ERROR, _numbers(SETTINGS, 0, 0, 5)),
    "settings of a stream": (Code.PROTOCOL_ERROR, _numbers(SETTINGS, 0, 1, 0)),
    "too large a first window": (
        Code.FLOW_CONTROL_ERROR,
        lambda _: frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31}),
    ),
    "no size of a frame": (
        Code.PROTOCOL_ERROR,
        lambda _: frames.settings({frames.MAX_FRAME_SIZE: 100}),
    ),
    "a push": (Code.PROTOCOL_ERROR, _numbers(frames.PUSH_PROMISE, frames.END_HEADERS, 1, 4)),
    "a ping of another size": (Code.FRAME_SIZE_ERROR, _numbers(PING, 0, 0, 7)),
    "a reset of another size": (Code.FRAME_SIZE_ERROR, _numbers(frames.RST_STREAM, 0, 1, 3)),
    "a reset of a stream that never was": (
        Code.PROTOCOL_ERROR,
        lambda _: frames.reset(9, Code.CANCEL),
    ),
    "a GOAWAY of another size": (Code.FRAME_SIZE_ERROR, _numbers(frames.GOAWAY, 0, 0, 7)),
    "a window that grows by nothing": (
        Code.PROTOCOL_ERROR,
        lambda _: frames.window_update(0, 0),
    ),
    "too large a window": (
        Code.FLOW_CONTROL_ERROR,
        lambda _: frames.window_update(0, 2**31 - 1),
    ),
    "a window of a stream that never was": (
        Code.PROTOCOL_ERROR,
        lambda _: frames.window_update(5, 1),
    ),
}


@pytest.mark.promise("S6-191")
@pytest.mark.parametrize("what", FORBIDDEN)
async def test_what_http2_forbids_ends_the_connection_and_says_why(
    what: str, port: int, beside: Callable[[], object]
) -> None:
    code, make = FORBIDDEN[what]
    async with dialled(port) as peer:
        peer.send(make(peer))
        assert await peer.ending() == code
    await beside()  # type: ignore[misc]


@pytest.mark.promise("S6-191")
async def test_what_is_unknown_or_late_is_passed_over(port: int) -> None:
    """Frames and settings of no meaning, priorities, and what comes for a call that is over."""
    async with dialled(port) as peer:
        peer.send(
            frame(0x77, 0xFF, 3, b"what"),
            frame(frames.PRIORITY, 0, 1, bytes(5)),
            frames.settings({0x99: 7}),
            peer.request(1, "None"),
        )
        await peer.find(frames.RST_STREAM)
        peer.send(
            frame(DATA, 0, 1, bytes(100)),
            frames.window_update(1, 5),
            frames.reset(1, Code.CANCEL),
            peer.request(3),
            frame(DATA, frames.END_STREAM, 3, message(b"still served")),
        )
        assert (await peer.find(DATA))[3] == message(b"still served")


@pytest.mark.promise("S6-191")
async def test_padding_and_priority_are_taken_off(port: int) -> None:
    async with dialled(port) as peer:
        block = peer.request(1)[frames.HEAD_BYTES :]
        flags = frames.END_HEADERS | frames.PADDED | frames.WITH_PRIORITY
        peer.send(
            frame(HEADERS, flags, 1, b"\x07" + bytes(5) + block + bytes(7)),
            frame(DATA, frames.PADDED | frames.END_STREAM, 1, b"\x03" + message(b"in") + bytes(3)),
        )
        assert (await peer.find(DATA))[3] == message(b"in")


@pytest.mark.promise("S6-191")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 100])
async def test_bytes_come_in_parts_of_any_size(size: int, port: int) -> None:
    async with dialled(port, greets=False) as peer:
        sent = (
            frames.PREFACE
            + frames.settings({})
            + peer.request(1, "Talk")
            + frame(DATA, 0, 1, message(b"one")[:4])
            + frame(DATA, 0, 1, message(b"one")[4:] + message(b"two") + message(b"three")[:2])
            + frame(DATA, frames.END_STREAM, 1, message(b"three")[2:])
        )
        for place in range(0, len(sent), size):
            peer.send(sent[place : place + size])
            await peer.writer.drain()
            await asyncio.sleep(0)
        heard = [(await peer.find(DATA))[3] for _ in range(3)]
    assert heard == [message(b"one"), message(b"two"), message(b"three")]


@pytest.mark.promise("S6-191")
async def test_whoever_does_not_greet_is_cut_off(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_GREETING_SECONDS", 0.2)
    async with asyncio.timeout(PATIENCE):
        async with dialled(port, greets=False) as peer:
            assert await peer.ending() is None
        async with dialled(port, greets=False) as peer:
            peer.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await peer.ending() == Code.PROTOCOL_ERROR


async def test_the_owner_is_told_of_a_client_that_breaks_the_protocol() -> None:
    told: list[tuple[str, ProtocolError]] = []
    connection, _ = served(complain=lambda *each: told.append(each))
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    ((peer, error),) = told
    assert (peer, error.code) == (connection.peer, Code.PROTOCOL_ERROR)


@pytest.mark.promise("S6-191")
async def test_more_calls_than_there_may_be_are_refused(port: int, echo: Echo) -> None:
    """Those that were reset at once count until their handlers are done."""
    async with dialled(port) as peer:
        numbers = range(1, 2 * server.MOST_CALLS + 11, 2)
        for number in numbers:
            peer.send(peer.request(number, "Talk"), frame(DATA, 0, number, message(b"hold")))
        for number in numbers[server.MOST_CALLS :]:
            assert (await peer.find(frames.RST_STREAM))[2:] == (
                number,
                int(Code.REFUSED_STREAM).to_bytes(4, "big"),
            )
    assert echo.served == server.MOST_CALLS


@pytest.mark.promise("S6-191")
async def test_calls_that_are_reset_at_once_let_others_through(
    port: int, beside: Callable[[], object]
) -> None:
    async with dialled(port) as peer:
        for number in range(1, 20_001, 2):
            peer.send(peer.request(number, "Talk"), frames.reset(number, Code.CANCEL))
        await beside()  # type: ignore[misc]


@pytest.mark.promise("S6-191")
async def test_all_messages_use_the_window_of_the_connection() -> None:
    connection, _ = served()
    connection.first_window = WINDOW
    stream = Stream(connection, 1, most_bytes=MOST_BYTES)
    for _ in range(frames.FIRST_WINDOW // 10_005):
        connection.send(stream, bytes(10_000))
        assert not stream.unsent
    connection.send(stream, bytes(10_000))
    assert stream.unsent
    connection.abort("the test is over")


@pytest.mark.promise("S6-191")
async def test_a_small_message_does_not_overtake_a_large_one() -> None:
    connection, _ = served()
    stream = Stream(connection, 1, most_bytes=MOST_BYTES)
    connection.send(stream, bytes(100_000))
    stream.window = connection._window = 50
    connection.send(stream, b"small")
    assert [len(part) for part in stream.unsent] == [100_005 - frames.FIRST_WINDOW - 50, 10]
    connection.abort("the test is over")


@pytest.mark.promise("S6-191")
async def test_what_was_not_whole_of_a_stream_that_ended_is_not_counted() -> None:
    connection, _ = served()
    stream = Stream(connection, 1, most_bytes=MOST_BYTES)
    stream.receive(frames.MESSAGE_HEAD.pack(0, 1000) + bytes(500), 505)
    assert connection.partial == 505
    connection.forget(stream)
    assert connection.partial == 0
    connection.abort("the test is over")


@pytest.mark.promise("S6-191")
async def test_what_came_before_an_error_is_read() -> None:
    connection, _ = served()
    stream = Stream(connection, 1, most_bytes=MOST_BYTES)
    stream.receive(message(b"one") + message(b"two"), 20)
    stream.fail(StreamError(grpc.StatusCode.UNAVAILABLE, "lost"))
    assert [unpack(await stream.read() or b"") for _ in range(2)] == [b"one", b"two"]
    with pytest.raises(StreamError, match="lost"):
        await stream.read()
    connection.abort("the test is over")


@pytest.mark.promise("S6-191")
async def test_answers_that_are_not_read_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "FRAMES_FOR_NOTHING", 1_000_000)
    connection, transport = served()
    connection.data_received(frames.PREFACE + frames.settings({}))
    connection.pause_writing()
    pings = frame(PING, 0, 0, bytes(8)) * 200
    while not connection.over:
        connection.data_received(pings)
        await asyncio.sleep(0)
        assert len(transport.sent) < 2 * link._MOST_CONTROL_BYTES


@pytest.mark.promise("S6-191")
async def test_what_comes_while_a_connection_rests_is_kept() -> None:
    connection, transport = served()
    pings = frame(PING, 0, 0, bytes(8)) * 300
    connection.data_received(frames.PREFACE + frames.settings({}) + pings)
    connection.data_received(pings)
    for _ in range(5):
        await asyncio.sleep(0)
    connection.abort("the test is over")
    assert transport.sent.count(frame(PING, frames.ACK, 0, bytes(8))) == 600


@pytest.mark.promise("S6-191")
@pytest.mark.parametrize("asks", ["pings", "settings"])
async def test_whoever_does_not_read_what_it_asks_for_is_cut_off(
    asks: str, port: int, beside: Callable[[], object]
) -> None:
    one = frame(PING, 0, 0, bytes(8)) if asks == "pings" else frames.settings({})
    async with dialled(port) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await _send_for_ever(peer, one * 1000)
    await beside()  # type: ignore[misc]


@pytest.mark.promise("S6-191")
async def test_more_than_a_window_ends_the_connection(port: int, echo: Echo) -> None:
    """The peer is told to send more only when what it sent is read."""
    async with dialled(port) as peer:
        peer.send(peer.request(1, "Talk"), frame(DATA, 0, 1, message(b"hold")))
        part = frame(DATA, 0, 1, message(bytes(16_000)))
        peer.send(part * (WINDOW // len(part) + 2))
        assert await peer.ending() == Code.FLOW_CONTROL_ERROR


@pytest.mark.promise("S6-191")
async def test_messages_that_are_not_whole_have_a_bound_together(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dialled(port) as peer:
        part = bytes(16_000)
        head = frames.MESSAGE_HEAD.pack(0, MOST_BYTES)
        windows: dict[int, int] = {}
        refused: list[tuple[int, int]] = []
        numbers = range(1, 13, 2)
        for number in numbers:
            windows[number] = WINDOW
            peer.send(peer.request(number, "Talk"), frame(DATA, 0, number, head))
        sent = dict.fromkeys(numbers, len(head))
        while not refused:
            for number in numbers:
                while windows[number] - sent[number] >= len(part) and sent[number] < 3_900_000:
                    peer.send(frame(DATA, 0, number, part))
                    sent[number] += len(part)
            kind, _, stream, payload = await peer.next()
            if kind == frames.WINDOW_UPDATE and stream:
                windows[stream] += frames.number(payload)
            elif kind == frames.RST_STREAM:
                refused.append((stream, frames.number(payload)))
    assert 4 * MOST_BYTES <= sum(sent.values()) <= 4 * MOST_BYTES + 2 * len(numbers) * WINDOW


@pytest.mark.promise("S6-191")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ((("grpc-timeout", "soon"),), grpc.StatusCode.INVALID_ARGUMENT),
        ((("grpc-timeout", "123456789S"),), grpc.StatusCode.INVALID_ARGUMENT),
        ((("grpc-timeout", "0n"),), grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
async def test_a_strange_timeout_is_answered(
    headers: tuple[tuple[str, str], ...], status: grpc.StatusCode, port: int
) -> None:
    async with dialled(port) as peer:
        peer.send(peer.request(1, "One", *headers))
        _, flags, _, block = await peer.find(HEADERS)
    assert flags & frames.END_STREAM
    said = dict(peer.decoder.decode(block))
    assert said["grpc-status"] == str(status.value[0])
