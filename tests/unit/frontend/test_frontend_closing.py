"""Clients that send more than is read of them: each gets its one answer whole, and nobody gets a
second one.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest
from harness import COMPLETION, PATIENCE, Harness, Start, request_bytes, say_hello, say_nothing
from one_case import one_case

from tandem_frontend.http.closing import LingeringClose
from tandem_frontend.http.connection import Connection

MUCH = 32 * 1024 * 1024
"""More than all buffers between a client and its server hold."""
BODY = json.dumps(COMPLETION).encode()


def upload(path: bytes, *, method: bytes = b"POST", head: bytes = b"", length: int = MUCH) -> bytes:
    return b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n%b\r\n" % (
        method,
        path,
        length,
        head,
    )


def send_all_then_read(port: int, head: bytes, body: bytes) -> bytes:
    """As most clients do it: they look for an answer when everything is sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(head)
        for at in range(0, len(body), 1 << 20):
            client.sendall(body[at : at + (1 << 20)])
        answer = b""
        while data := client.recv(1 << 16):
            answer += data
        return answer


async def ask(frontend: Harness, head: bytes, body: bytes) -> bytes:
    asking = asyncio.to_thread(send_all_then_read, frontend.port, head, body)
    return await asyncio.wait_for(asking, PATIENCE)


REFUSED: dict[str, tuple[bytes, bytes]] = {
    "no such path": (upload(b"/nothing"), b"404"),
    "another method": (upload(b"/v1/completions", method=b"PUT"), b"405"),
    "a body where none is read": (upload(b"/live", method=b"GET"), b"200"),
    "no key": (upload(b"/v1/completions"), b"401"),
    "too large": (
        upload(b"/v1/completions", head=b"authorization: Bearer key\r\n"),
        b"413",
    ),
    "too large a head": (upload(b"/live", head=b"a: %b\r\n" % (b"a" * 40_000)), b"431"),
    "no host": (b"POST /live HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % MUCH, b"400"),
    "CONNECT": (b"CONNECT /live HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % MUCH, b"400"),
    "an upgrade": (
        upload(b"/nothing", head=b"connection: upgrade\r\nupgrade: h2c\r\n"),
        b"404",
    ),
}


@pytest.fixture
async def keyed(start: Start) -> Harness:
    return await start(say_hello, api_keys=("key",))


@one_case("name", REFUSED)
async def test_a_client_that_sends_on_can_read_its_one_answer(keyed: Harness, name: str) -> None:
    head, status = REFUSED[name]
    # What is sent looks like requests, so that whoever reads it as such is found out.
    other = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = await ask(keyed, head, other * (MUCH // len(other)))
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"\r\nconnection: close\r\n" in answer
    assert answer.endswith(b"}")


@pytest.mark.promise("S6-137")
async def test_a_chunked_upload_that_grows_too_large_can_read_its_answer(start: Start) -> None:
    frontend = await start(say_hello, max_body_bytes=1000)
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    most = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for body, status in (
        (most + b"1\r\nx\r\n", b"413"),
        (chunk * (MUCH >> 16), b"413"),
        (most + b"\r\n" * (MUCH >> 16), b"400"),  # what follows is no chunk
    ):
        answer = await ask(frontend, head, body)
        assert answer.startswith(b"HTTP/1.1 " + status)
        assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_body_that_came_whole_and_unread_costs_no_connection(start: Start) -> None:
    frontend = await start(say_hello)
    reader, writer = await frontend.connect()
    for _ in range(3):
        writer.write(upload(b"/nothing", length=5) + b"hello")
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close" not in head
        await asyncio.wait_for(reader.readuntil(b"}}"), PATIENCE)
    writer.close()


@pytest.mark.promise("S6-138")
async def test_a_client_that_never_stops_sending_is_cut(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_frontend.http.closing._DROPPED_BYTES", 1 << 20)
    frontend = await start(say_hello)
    _, writer = await frontend.connect()
    writer.write(upload(b"/nothing", length=1 << 40))

    async def send_on() -> None:
        while True:
            writer.write(b"x" * (1 << 16))
            await writer.drain()

    with pytest.raises(ConnectionError):
        await asyncio.wait_for(send_on(), PATIENCE)


async def test_a_client_that_neither_sends_nor_closes_is_let_go(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_frontend.http.closing._IDLE_SECONDS", 0.1)
    lost = asyncio.Event()
    real = Connection.connection_lost
    monkeypatch.setattr(
        Connection, "connection_lost", lambda self, exc: (real(self, exc), lost.set())
    )
    frontend = await start(say_hello)
    reader, writer = await frontend.connect()
    writer.write(upload(b"/nothing"))
    assert b"404" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    lost.clear()
    await asyncio.wait_for(lost.wait(), PATIENCE)
    writer.close()


class Resting(asyncio.Protocol):
    """A connection whose socket is not read."""

    def __init__(self) -> None:
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self.made.set_result(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def test_a_client_that_reset_its_connection_unseen_is_let_go() -> None:
    """While much of what a client sent waits unread, its going is not seen."""
    loop, resting = asyncio.get_running_loop(), Resting()
    async with await loop.create_server(lambda: resting, "127.0.0.1", 0) as server:
        client = socket.create_connection(server.sockets[0].getsockname(), timeout=PATIENCE)
        transport = await asyncio.wait_for(resting.made, PATIENCE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        closing = LingeringClose(transport, loop)
        await asyncio.wait_for(resting.lost.wait(), PATIENCE)
        closing.over()


@pytest.mark.promise("S6-139")
async def test_requests_sent_ahead_are_read_one_a_turn_and_answered_in_order(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many stand in one packet, the loop serves others between any two of them."""
    turns = 0
    begun: list[int] = []
    real = Connection.on_headers_complete

    def count(self: Connection) -> None:
        begun.append(turns)
        real(self)

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not done.is_set():
            asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(Connection, "on_headers_complete", count)
    frontend = await start(say_hello)
    done = asyncio.Event()
    begun.clear()
    turn()
    reader, writer = await frontend.connect()
    many = 1000
    writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n" * many)
    for _ in range(many):
        await asyncio.wait_for(reader.readuntil(b"}"), PATIENCE)
    done.set()
    writer.close()
    assert len(begun) == many
    assert len(set(begun)) == many


async def test_half_a_request_ahead_does_not_hide_that_the_client_has_gone(start: Start) -> None:
    frontend = await start(say_nothing)
    _, writer = await frontend.connect()
    writer.write(request_bytes(BODY, path="/v1/completions") + b"GET /ver")
    await frontend.router.until(lambda router: len(router.replies) == 1)
    writer.close()
    await frontend.until_metric("tandem_frontend_open_requests", 0)


async def test_a_body_that_breaks_off_into_nonsense_has_one_answer(start: Start) -> None:
    frontend = await start(say_hello)
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for rest in (b"5\r\nhelloXX", b"zz\r\n", b"5;\0\r\n", b"-1\r\n"):
        answer = await frontend.raw(head + b"2\r\n{}\r\n" + rest, until_closed=True)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1 ") == 1
