"""A connection takes a bounded part of a turn of the loop, counted in what its frames hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from echo_service import Echo, Stub, open_channel, serving
from one_case import one_case
from raw_peer import called, dialled, message, talking
from served_end import GREETING, request, served

from tandem_loop_grpc import frames, work
from tandem_loop_grpc.frames import Code, frame
from tandem_loop_grpc.server import MOST_CALLS, Served
from tandem_loop_grpc.stream import Stream

PATIENCE = 10.0
READS_A_TURN = 32
"""Of 256 KiB each, as uvloop has it."""


def _settings(name: int, count: int) -> bytes:
    entries = b"".join(
        name.to_bytes(2, "big") + (value % 4096).to_bytes(4, "big") for value in range(count)
    )
    return frame(frames.SETTINGS, 0, 0, entries)


FLOODS: dict[str, bytes] = {
    "settings of 2,730 windows": _settings(frames.INITIAL_WINDOW_SIZE, 2730),
    "settings of 2,730 table sizes": _settings(frames.HEADER_TABLE_SIZE, 2730),
    "settings of one window": _settings(frames.INITIAL_WINDOW_SIZE, 1),
    "empty settings": frames.settings({}),
    "pings": frame(frames.PING, 0, 0, bytes(8)),
    "priorities": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "resets": frames.reset(1, Code.CANCEL),
    "empty data": frame(frames.DATA, 0, 1),
    "padding": frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)),
    "windows": frames.window_update(0, 1),
    "windows of a stream": frames.window_update(1, 1),
    "frames of no meaning": frame(0x77, 0, 0, bytes(8)),
}


@pytest.mark.promise("S6-400")
@one_case("what", FLOODS)
async def test_frames_that_bring_nothing_end_their_connection(what: str) -> None:
    """As nghttp2 and Go do, and no turn takes more than a part of them."""
    connection, transport = served(Echo())
    connection.data_received(GREETING + b"".join(map(request, range(1, 200, 2))))
    await _quiet(connection)
    taken = _counted(connection)
    for _ in range(1 + work.FRAMES_FOR_NOTHING // work.OF_A_LOOP):
        connection.data_received(FLOODS[what] * (2 * work.FRAMES_FOR_NOTHING))
        await _quiet(connection, before=lambda: taken.append(0))
    assert connection.over
    assert max(taken) <= work.OF_A_CONNECTION
    assert [code for kind, _, code in transport.take() if kind == frames.GOAWAY][-1][4:8] == (
        Code.ENHANCE_YOUR_CALM.to_bytes(4, "big")
    )


@pytest.mark.promise("S6-400")
async def test_settings_count_as_many_frames_that_bring_nothing() -> None:
    connection, _ = served(Echo())
    connection.data_received(GREETING)
    for _ in range(2 * work.FRAMES_FOR_NOTHING // work.OF_SETTINGS):
        connection.data_received(frames.settings({}))
        await _quiet(connection)
    assert connection.over


def _counted(connection: Served) -> list[int]:
    """How many frames are taken in each turn: whoever counts begins a new number with it."""
    taken = [0]
    take = connection.take_frame

    def count(*args: object) -> None:
        taken[-1] += 1
        take(*args)  # type: ignore[arg-type]

    connection.take_frame = count  # type: ignore[method-assign]
    return taken


async def _quiet(connection: Served, before: Callable[[], object] = lambda: None) -> None:
    """Turns of the loop until nothing waits."""
    for _ in range(5_000):
        before()
        await asyncio.sleep(0)
        if not connection._reader.resting or connection.over:
            return
    raise AssertionError("it rests for ever")


@pytest.mark.promise("S6-400")
async def test_reads_of_one_turn_share_what_a_turn_has() -> None:
    """Many small reads take no more of it than one large one."""
    connection, _ = served(Echo())
    connection.data_received(GREETING + request(1))
    await _quiet(connection)
    taken = _counted(connection)
    for _ in range(READS_A_TURN):
        connection.data_received(frame(frames.DATA, 0, 1, message(b"x")) * 100)
    assert 0 < taken[0] <= work.OF_A_CONNECTION
    connection.abort("the test is over")


@pytest.mark.promise("S6-400")
async def test_connections_share_what_a_loop_has() -> None:
    both = [served(Echo()) for _ in range(20)]
    taken = 0
    for connection, _ in both:
        connection.data_received(GREETING + request(1))
    for _ in range(20):
        await asyncio.sleep(0)
    counts = [_counted(connection) for connection, _ in both]
    for connection, _ in both:
        connection.data_received(frame(frames.DATA, 0, 1, message(b"x")) * 1_000)
    taken = sum(count[0] for count in counts)
    assert taken <= work.OF_A_LOOP + work.OF_A_CONNECTION
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert [count[0] for count in counts] == [1_000] * len(both)  # each had its turns
    for connection, _ in both:
        connection.abort("the test is over")


@pytest.mark.promise("S6-400")
async def test_messages_of_a_frame_are_read_in_many_turns() -> None:
    """3,000 of them in one frame, on each of 100 calls."""
    echo = Echo()
    connection, _ = served(echo)
    connection.data_received(GREETING + b"".join(map(request, range(1, 200, 2))))
    await _quiet(connection)
    connection.work.there()
    cut = frame(frames.DATA, 0, 1, b"\0\0\0\0\0" * 3_000)
    connection.data_received(cut)
    (stream,) = [each for each in connection.streams.values() if each.number == 1]
    assert len(stream._messages) <= 64
    before = 3_000 * 5
    turns = 0
    while connection.streams[1]._part and turns < 10_000:
        left = len(stream._part)
        await asyncio.sleep(0)
        assert left - len(stream._part) <= 5 * work.OF_A_CONNECTION
        turns += 1
    assert turns >= before / 5 / work.OF_A_CONNECTION
    connection.abort("the test is over")


@pytest.mark.promise("S6-400")
async def test_readers_of_all_connections_share_what_a_loop_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """60 connections, with ten calls each that have 3,000 empty messages to read."""
    ends = [served(Echo())[0] for _ in range(60)]
    for connection in ends:
        connection.data_received(GREETING + b"".join(map(request, range(1, 20, 2))))
        await _quiet(connection)
    cut = read = 0
    take, put = Stream._next, Stream._put_in

    def count_read(stream: Stream) -> bytes:
        nonlocal read
        read += 1
        return take(stream)

    def count_cut(stream: Stream, message: bytes) -> None:
        nonlocal cut
        cut += 1
        put(stream, message)

    monkeypatch.setattr(Stream, "_next", count_read)
    monkeypatch.setattr(Stream, "_put_in", count_cut)
    most_read = most_cut = 0
    for number in range(1, 20, 2):
        for connection in ends:
            connection.data_received(frame(frames.DATA, 0, number, b"\0\0\0\0\0" * 3_000))
        for _ in range(5):
            cut = read = 0
            await asyncio.sleep(0)
            most_read, most_cut = max(most_read, read), max(most_cut, cut)
    assert 0 < most_read <= 2 * work.OF_A_LOOP
    assert most_cut <= 12 * work.OF_A_LOOP  # eight to a unit, and what was begun before
    for connection in ends:
        connection.abort("the test is over")


@pytest.mark.promise("S6-400")
async def test_blocked_calls_are_tried_once_for_all_frames_of_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection, _ = served(Echo())
    connection.data_received(GREETING + b"".join(map(request, range(1, 200, 2))))
    await _quiet(connection)
    connection._window = 1
    for stream in connection.streams.values():
        connection.send(stream, b"what waits for the connection's window")
    tried = 0
    flush = connection.flush

    def count(stream: object) -> None:
        nonlocal tried
        tried += 1
        flush(stream)  # type: ignore[arg-type]

    monkeypatch.setattr(connection, "flush", count)
    connection.data_received(frames.window_update(0, 1) * 2 * MOST_CALLS)
    assert 0 < tried <= 4
    connection.abort("the test is over")


@pytest.mark.promise("S6-401")
async def test_a_peers_table_sizes_cost_nothing_and_are_not_kept() -> None:
    """A1: each was kept until headers were sent, and all of them were said then."""
    connection, transport = served(Echo())
    connection.data_received(GREETING)
    for _ in range(20):
        connection.data_received(_settings(frames.HEADER_TABLE_SIZE, 32))
    connection.data_received(request(1, "None"))
    await _quiet(connection)
    for _ in range(5):
        await asyncio.sleep(0)
    (block,) = [block for kind, _, block in transport.take() if kind == frames.HEADERS]
    assert frames.table_updates(block) == 1
    assert len(block) < 200
    connection.abort("the test is over")


@pytest.mark.promise("S6-401")
async def test_a_servers_table_sizes_cost_a_client_nothing() -> None:
    async with called() as (channel, peers):
        call = Stub(channel).talk()
        await call.write(b"first")
        peer = await peers.get()
        await peer.find(frames.DATA)
        for _ in range(20):
            peer.send(_settings(frames.HEADER_TABLE_SIZE, 32))
        peer.send(peer.answer(1), frame(frames.DATA, 0, 1, message(b"heard")))
        assert await call.read() == b"heard"
        other = Stub(channel).talk()
        await other.write(b"second")
        _, _, _, block = await peer.find(frames.HEADERS)
        assert frames.table_updates(block) == 1
        call.cancel()
        other.cancel()


@pytest.mark.promise("S6-400")
@pytest.mark.parametrize("what", ["pings", "empty settings", "windows"])
async def test_a_servers_flood_ends_a_clients_connection(what: str) -> None:
    async with talking() as (call, peer):
        peer.send(FLOODS[what] * 2_000)
        assert await peer.ending() == Code.ENHANCE_YOUR_CALM
        call.cancel()


@pytest.mark.promise("S6-400")
@pytest.mark.parametrize("each", [frames.window_update(0, 20), frame(frames.PING, 0, 0, bytes(8))])
async def test_whoever_reads_may_open_windows_and_ping(each: bytes) -> None:
    """As gRPC's own core and Go do, with each message."""
    connection, transport = served(Echo())
    connection.data_received(GREETING + request(1))
    await _quiet(connection)
    for _ in range(3 * work.FRAMES_FOR_NOTHING):
        connection.data_received(frame(frames.DATA, 0, 1, message(b"echo this")) + each)
        await asyncio.sleep(0)
        transport.sent.clear()
    assert not connection.over
    connection.abort("the test is over")


@pytest.mark.promise("S6-400")
async def test_headers_of_many_fields_count_as_many() -> None:
    connection, _ = served(Echo())
    connection.data_received(GREETING)
    block = b"\x82" * 190  # a method, by its number in the static table
    left = connection.work.left
    connection.data_received(frame(frames.HEADERS, frames.END_HEADERS, 1, block))
    assert left - connection.work.left >= work.OF_HEADERS + 190 // 4
    connection.abort("the test is over")


@pytest.mark.promise("S6-400")
async def test_a_peer_whose_flood_is_cut_off_harms_nobody() -> None:
    async with serving("ours", Echo()) as port, open_channel("core", port) as channel:
        stub = Stub(channel)
        async with dialled(port) as peer:
            peer.send(FLOODS["settings of one window"] * 5_000)
            async with asyncio.timeout(PATIENCE):
                assert await peer.ending() == Code.ENHANCE_YOUR_CALM
        assert await stub.one(b"after", timeout=PATIENCE) == b"after"
