"""What a server says costs its own calls: each ends with a status, in bounded time."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio
import pytest
from echo_service import MOST_BYTES, Stub
from one_case import one_case
from raw_peer import Peer, called, message, talking

from tandem_loop_grpc import client, frames
from tandem_loop_grpc.client import RpcChannel
from tandem_loop_grpc.frames import Code, frame

PATIENCE = 60.0
Status = grpc.StatusCode
DATA, HEADERS, END = frames.DATA, frames.HEADERS, frames.END_STREAM


async def ended(call: client.RpcCall) -> grpc.aio.AioRpcError:
    """How it failed, all messages read."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _read_for_ever(call)
    return caught.value


async def _read_for_ever(call: client.RpcCall) -> None:
    while True:
        await call.read()


STRANGE: dict[str, tuple[Status, Callable[[Peer], bytes]]] = {
    "a reset": (Status.CANCELLED, lambda _: frames.reset(1, Code.CANCEL)),
    "a refusal": (Status.UNAVAILABLE, lambda _: frames.reset(1, Code.REFUSED_STREAM)),
    "calm": (Status.RESOURCE_EXHAUSTED, lambda _: frames.reset(1, Code.ENHANCE_YOUR_CALM)),
    "a fault": (Status.INTERNAL, lambda _: frames.reset(1, Code.INTERNAL_ERROR)),
    "a code of no meaning": (
        Status.INTERNAL,
        lambda _: frame(frames.RST_STREAM, 0, 1, (99).to_bytes(4, "big")),
    ),
    "no status": (
        Status.INTERNAL,
        lambda peer: peer.answer(1) + frame(DATA, END, 1, message(b"x")),
    ),
    "a part of a message": (
        Status.INTERNAL,
        lambda peer: peer.answer(1) + frame(DATA, 0, 1, message(b"x")[:-1]) + peer.status(1),
    ),
    "a compressed message": (
        Status.UNIMPLEMENTED,
        lambda peer: peer.answer(1) + frame(DATA, 0, 1, b"\x01" + message(b"x")[1:]),
    ),
    "too large a message": (
        Status.RESOURCE_EXHAUSTED,
        lambda peer: (
            peer.answer(1) + frame(DATA, 0, 1, frames.MESSAGE_HEAD.pack(0, MOST_BYTES + 1))
        ),
    ),
    "a status of no meaning": (Status.UNKNOWN, lambda peer: peer.answer(1) + peer.status(1, "77")),
    "a status that is no number": (
        Status.UNKNOWN,
        lambda peer: peer.answer(1) + peer.status(1, "well"),
    ),
    "a status of 5,000 digits": (
        Status.UNKNOWN,
        lambda peer: peer.answer(1) + peer.status(1, "1" * 5_000),
    ),
    "a status of HTTP of 5,000 digits": (
        Status.INTERNAL,
        lambda peer: frame(
            HEADERS, frames.END_HEADERS | END, 1, peer.headers((":status", "1" * 5_000))
        ),
    ),
    "a page as its answer": (
        Status.UNKNOWN,
        lambda peer: frame(
            HEADERS,
            frames.END_HEADERS,
            1,
            peer.headers((":status", "200"), ("content-type", "text/html")),
        ),
    ),
    "an answer of capitals": (
        Status.INTERNAL,
        lambda peer: frame(
            HEADERS,
            frames.END_HEADERS,
            1,
            peer.headers((":status", "200"), ("Content-Type", "application/grpc")),
        ),
    ),
    "headers that are large": (
        Status.RESOURCE_EXHAUSTED,
        lambda peer: frame(
            HEADERS,
            frames.END_HEADERS,
            1,
            peer.headers(
                (":status", "200"), ("content-type", "application/grpc"), ("a", "~" * 9000)
            ),
        ),
    ),
    "a page": (
        Status.UNAVAILABLE,
        lambda peer: frame(HEADERS, frames.END_HEADERS | END, 1, peer.headers((":status", "503"))),
    ),
    "an error of HTTP": (
        Status.UNIMPLEMENTED,
        lambda peer: frame(HEADERS, frames.END_HEADERS | END, 1, peer.headers((":status", "404"))),
    ),
    "an answer to no call": (Status.UNAVAILABLE, lambda peer: peer.answer(3)),
    "a push": (
        Status.UNAVAILABLE,
        lambda _: frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, bytes(4)),
    ),
    "what is no frame": (Status.UNAVAILABLE, lambda _: b"\xff" * 40),
    "that it goes away": (Status.UNAVAILABLE, lambda _: frames.goaway(0, Code.NO_ERROR)),
}


@pytest.mark.promise("S6-192")
@one_case("what", STRANGE)
async def test_a_call_ends_with_a_status(what: str) -> None:
    status, make = STRANGE[what]
    async with talking() as (call, peer):
        peer.send(make(peer))
        assert (await ended(call)).code() is status
        with pytest.raises(grpc.aio.AioRpcError):
            await call.write(b"second")
        with pytest.raises(grpc.aio.AioRpcError):
            await call.done_writing()


@pytest.mark.promise("S6-192")
async def test_a_fault_of_ours_while_it_dials_ends_the_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def look_up() -> None:
        raise ValueError("a fault")

    async with called() as (channel, _):
        monkeypatch.setattr(channel, "_look_up", look_up)
        call = Stub(channel).talk()
        assert (await ended(call)).code() is Status.INTERNAL
    assert [each.message for each in caplog.records] == ["a call could not begin"]


@pytest.mark.promise("S6-192")
async def test_what_came_before_a_lost_connection_is_read() -> None:
    async with talking() as (call, peer):
        peer.send(peer.answer(1), frame(DATA, 0, 1, message(b"one") + message(b"two")))
        await peer.writer.drain()
        peer.writer.close()
        assert [await call.read(), await call.read()] == [b"one", b"two"]
        assert (await ended(call)).code() is Status.UNAVAILABLE


@pytest.mark.promise("S6-192")
async def test_a_goaway_lets_open_calls_end_and_new_ones_go_elsewhere() -> None:
    async with called() as (channel, peers):
        stub = Stub(channel)
        old = stub.talk()
        await old.write(b"first")
        first = await peers.get()
        first.send(frames.goaway(1, Code.NO_ERROR), first.answer(1))
        first.send(frame(DATA, 0, 1, message(b"goes on")))
        assert await old.read() == b"goes on"
        new = stub.talk()
        await new.write(b"second")
        second = await peers.get()
        assert second is not first
        first.send(first.status(1))
        assert await old.read() is grpc.aio.EOF
        new.cancel()


@pytest.mark.promise("S6-192")
async def test_a_message_that_cannot_be_read_is_none() -> None:
    async with talking() as (call, peer):
        unreadable = frames.MESSAGE_HEAD.pack(0, 2) + b"\x0a\xff"
        peer.send(peer.answer(1), frame(DATA, 0, 1, 2 * unreadable + message(b"next")))
        assert await call.read() is None
        came: list[bytes | None] = []
        await call.hand_on(lambda each: came.append(each) or each)
        assert came == [None, b"next"]
        call.cancel()


@pytest.mark.promise("S6-192")
@pytest.mark.parametrize("count", [0, 2])
async def test_one_answer_means_one(count: int) -> None:
    async with called() as (channel, peers):
        asking = asyncio.ensure_future(Stub(channel).one(b"ask", timeout=PATIENCE))
        peer = await peers.get()
        await peer.find(HEADERS)
        peer.send(peer.answer(1), frame(DATA, 0, 1, message(b"x") * count), peer.status(1))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asking
    assert caught.value.code() is Status.INTERNAL


@pytest.mark.promise("S6-192")
async def test_requests_that_raise_cancel_their_call_and_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def requests() -> AsyncIterator[bytes]:
        yield b"first"
        raise ValueError("a fault of whoever calls")

    async with called() as (channel, peers):
        call = Stub(channel).talk(requests())
        peer = await peers.get()
        assert (await peer.find(frames.RST_STREAM))[2] == 1
        with pytest.raises(asyncio.CancelledError):
            await call.read()
    (line,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert line.name == client.__name__
    assert line.exc_info is not None


@pytest.mark.promise("S6-192")
async def test_requests_end_with_their_call() -> None:
    """Whatever they wait for."""
    closed = asyncio.Event()

    async def requests() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.sleep(60)
        finally:
            closed.set()

    async with called() as (channel, peers):
        call = Stub(channel).talk(requests())
        peer = await peers.get()
        await peer.find(DATA)
        peer.send(peer.answer(1), peer.status(1))
        assert await call.read() is grpc.aio.EOF
        await closed.wait()


@pytest.mark.promise("S6-192")
async def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        async with RpcChannel(
            f"127.0.0.1:{held.getsockname()[1]}", None, most_bytes=MOST_BYTES
        ) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Stub(channel).one(b"ask")
    assert caught.value.code() is Status.UNAVAILABLE
    assert "refused" in (caught.value.details() or "")


@pytest.mark.promise("S6-192")
@pytest.mark.parametrize("address", ["no-such-name.invalid:1", "a..b:1", "unix:/no/such/socket"])
async def test_an_address_that_is_none(address: str) -> None:
    async with RpcChannel(address, None, most_bytes=MOST_BYTES) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stub(channel).one(b"ask")
    assert caught.value.code() is Status.UNAVAILABLE
    assert caught.value.details()


@pytest.mark.promise("S6-192")
async def test_a_server_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.3)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        where = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(where)
        async with RpcChannel(f"127.0.0.1:{where[1]}", None, most_bytes=MOST_BYTES) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Stub(channel).one(b"ask")
        assert caught.value.code() is Status.UNAVAILABLE
        for each in waiting:
            each.close()


@pytest.mark.promise("S6-192")
async def test_a_server_that_keeps_no_deadline_is_left_at_it() -> None:
    async with talking(timeout=0.3) as (call, peer):
        error = await asyncio.wait_for(ended(call), PATIENCE)
        assert error.code() is Status.DEADLINE_EXCEEDED
        assert await peer.find(frames.RST_STREAM)


@pytest.mark.promise("S6-192")
async def test_a_call_that_was_cancelled_gives_nothing_that_had_come() -> None:
    async with talking() as (call, peer):
        peer.send(peer.answer(1) + 2 * frame(DATA, 0, 1, message(b"x")))
        await call.read()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call.read()


@pytest.mark.promise("S6-192")
async def test_a_name_that_nobody_looks_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT_SECONDS", 0.3)
    async with RpcChannel("somewhere:1", None, most_bytes=MOST_BYTES) as channel:
        monkeypatch.setattr(channel, "_look_up", asyncio.Event().wait)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(Stub(channel).one(b"ask"), PATIENCE)
    assert caught.value.code() is Status.UNAVAILABLE
    assert "longer than 0.3 seconds" in str(caught.value.details())


@pytest.mark.promise("S6-192")
async def test_a_name_of_several_addresses_is_dialled_at_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with called() as (channel, peers):
        port = int(channel.address.rpartition(":")[2])

        async def look_up() -> list[tuple[str, int]]:
            return [("127.0.0.2", port), ("127.0.0.1", port)]

        monkeypatch.setattr(channel, "_look_up", look_up)
        call = Stub(channel).talk()
        await call.write(b"first")
        assert await peers.get()
        call.cancel()


@pytest.mark.promise("S6-192")
async def test_calls_share_a_dial_and_one_that_is_cancelled_leaves_it_to_the_others() -> None:
    async with called() as (channel, peers):
        stub = Stub(channel)
        given_up, kept = stub.talk(), stub.talk()
        await asyncio.sleep(0)
        given_up.cancel()
        await kept.write(b"first")
        peer = await peers.get()
        assert (await peer.find(DATA))[3] == message(b"first")
        assert peers.empty()
        kept.cancel()


@pytest.mark.promise("S6-192")
async def test_a_channel_that_is_closed_cancels_its_calls() -> None:
    async with called() as (channel, peers):
        call = Stub(channel).talk()
        await call.write(b"first")
        await peers.get()
        await channel.close()
        with pytest.raises(asyncio.CancelledError):
            await call.read()


@pytest.mark.promise("S6-192")
async def test_a_process_that_hangs_is_given_up_and_one_that_answers_is_not() -> None:
    async with called(silence_seconds=0.4) as (channel, peers):
        call = Stub(channel).talk()
        await call.write(b"first")
        peer = await peers.get()
        for _ in range(5):
            _, flags, _, payload = await peer.find(frames.PING)
            assert not flags & frames.ACK
            peer.send(frame(frames.PING, frames.ACK, 0, payload))
        peer.send(peer.answer(1), frame(DATA, 0, 1, message(b"still there")))
        assert await call.read() == b"still there"
        error = await ended(call)
    assert (error.code(), error.details()) == (Status.UNAVAILABLE, "the peer does not answer")


@pytest.mark.promise("S6-192")
async def test_a_lost_machine_is_looked_for_by_the_kernel() -> None:
    """On both ends, and sooner than anything waits for it."""
    async with called() as (channel, peers):
        call = Stub(channel).talk()
        await call.write(b"first")
        await peers.get()
        transport = channel._connections[-1]._transport
        assert transport is not None
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
        idle = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        step = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        count = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        assert idle + step * count == 15
        call.cancel()


@pytest.mark.promise("S6-192")
async def test_a_connection_that_is_lost_before_its_first_call_fails_it() -> None:
    async with called() as (channel, peers):
        call = Stub(channel).talk()
        peer = await peers.get()
        peer.send(b"\xff" * 40)
        assert (await ended(call)).code() is Status.UNAVAILABLE


@pytest.mark.promise("S6-192")
async def test_a_call_that_still_sends_when_its_status_comes_is_reset() -> None:
    """Or a server that waits for its end would keep it."""
    async with talking() as (call, peer):
        await peer.find(DATA)
        peer.send(peer.answer(1), peer.status(1))
        assert (await peer.find(frames.RST_STREAM))[2:] == (1, bytes(4))
        assert await call.read() is grpc.aio.EOF


@pytest.mark.promise("S6-192")
async def test_a_closed_channel_closes_connections_that_took_no_more_calls() -> None:
    async with called() as (channel, peers):
        old = Stub(channel).talk()
        await old.write(b"first")
        first = await peers.get()
        await first.find(DATA)
        first.send(frames.goaway(1, Code.NO_ERROR), first.answer(1))
        first.send(frame(DATA, 0, 1, message(b"goes on")))
        assert await old.read() == b"goes on"
        new = Stub(channel).talk()
        await new.write(b"second")
        second = await peers.get()
        await channel.close()
        assert [await first.ending(), await second.ending()] == [Code.NO_ERROR] * 2


@pytest.mark.promise("S5-405")
async def test_calls_wait_while_a_server_takes_no_more() -> None:
    async with called() as (channel, peers):
        stub = Stub(channel)
        first = stub.talk()
        await first.write(b"first")
        peer = await peers.get()
        await peer.find(DATA)
        peer.send(frames.settings({frames.MAX_CONCURRENT_STREAMS: 1}))
        await peer.find(frames.SETTINGS)
        waiting, given_up = stub.talk(), stub.talk(timeout=0.2)
        assert (await ended(given_up)).code() is Status.DEADLINE_EXCEEDED
        peer.send(peer.answer(1), peer.status(1))
        assert await first.read() is grpc.aio.EOF
        assert (await peer.find(HEADERS))[2] == 3
        waiting.cancel()


@pytest.mark.promise("S5-405")
async def test_calls_that_wait_go_elsewhere_once_their_server_leaves() -> None:
    async with called() as (channel, peers):
        stub = Stub(channel)
        first = stub.talk()
        await first.write(b"first")
        peer = await peers.get()
        peer.send(frames.settings({frames.MAX_CONCURRENT_STREAMS: 1}))
        await peer.find(DATA)
        await peer.find(frames.SETTINGS)
        waiting = stub.talk()
        await asyncio.sleep(0)
        peer.send(frames.goaway(1, Code.NO_ERROR))
        other = await peers.get()
        assert (await other.find(HEADERS))[2] == 1
        first.cancel()
        waiting.cancel()
