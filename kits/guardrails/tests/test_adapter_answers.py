"""Whatever a guardrail service sends beside one answer, it reaches no other call: a connection is
used again only after an answer that was exactly one.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from guardrail_server import self_signed

from tandem.hooks.classifiers.contract import ScoringError
from tandem_guardrails.adapters.credentials import ApiKey
from tandem_guardrails.adapters.http import GuardrailClient, HttpOptions

BOUND = 60.0
Say = Callable[[bytes], Awaitable[None]]
Serve = Callable[[int, Say], Awaitable[None]]
"""Answers request number so and so of the whole server."""


def answer(number: int | str, *, head: str = "", length: int | None = None) -> bytes:
    body = json.dumps({"for": number}).encode()
    length = len(body) if length is None else length
    return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{head}\r\n".encode() + body


def chunked(number: int, *, end: str = "0\r\n\r\n") -> bytes:
    body = json.dumps({"for": number})
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return f"{head}{len(body):x}\r\n{body}\r\n{end}".encode()


STRAY = answer("stray")


BESIDE: dict[str, Callable[[int], list[bytes]]] = {
    "two in a packet": lambda number: [answer(number) + STRAY],
    "two in two packets": lambda number: [answer(number), STRAY],
    "half of another": lambda number: [answer(number) + STRAY[:20]],
    "a line too many": lambda number: [answer(number) + b"\r\n"],
    "more than its length": lambda number: [answer(number) + b"trailing"],
    "told to wait": lambda number: [b"HTTP/1.1 100 Continue\r\n\r\n" + answer(number)],
    "told early": lambda number: [
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 2 + answer(number) + STRAY
    ],
    "told last": lambda number: [answer(number) + b"HTTP/1.1 100 Continue\r\n\r\n"],
    "closing": lambda number: [answer(number, head="Connection: close\r\n") + STRAY],
    "chunked": lambda number: [chunked(number) + STRAY],
    "chunked with trailers": lambda number: [chunked(number, end="0\r\nX: y\r\n\r\n") + STRAY],
    "old": lambda number: [answer(number).replace(b"HTTP/1.1", b"HTTP/1.0") + STRAY],
}
"""An answer and more, in packets."""


async def _answers(number: int, say: Say) -> None:
    await say(answer(number))


class Service:
    def __init__(self, serve: Serve) -> None:
        self.serve = serve
        self.greeting = b""
        """Said before anything was asked."""
        self.requests = 0
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)

        async def say(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await say(self.greeting)
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                self.requests += 1
                await self.serve(self.requests, say)
        writer.close()


@asynccontextmanager
async def serving(
    serve: Serve, *, greeting: bytes = b"", tls: tuple[Path, Path] | None = None
) -> AsyncIterator[tuple[Service, GuardrailClient]]:
    service, context = Service(serve), None
    service.greeting = greeting
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*tls)
    listening = await asyncio.start_server(service.connected, "127.0.0.1", 0, ssl=context)
    service.port = listening.sockets[0].getsockname()[1]
    scheme = "http" if tls is None else "https"
    options = HttpOptions.parse({"ca_file": "" if tls is None else str(tls[0])})
    client = GuardrailClient(f"{scheme}://127.0.0.1:{service.port}/", key=ApiKey(), options=options)
    try:
        yield service, client
    finally:
        await client.aclose()
        listening.close()
        for writer in service.writers:
            writer.close()
        await asyncio.sleep(0)


async def ask(client: GuardrailClient) -> object:
    async with asyncio.timeout(BOUND):
        return (await client.post(b"{}", timeout_ms=5000))["for"]


async def reason(client: GuardrailClient) -> str:
    with pytest.raises(ScoringError) as failed:
        await ask(client)
    return failed.value.reason


@pytest.mark.promise("S6-177")
@pytest.mark.parametrize("tls", [False, True])
async def test_what_comes_beside_an_answer_reaches_no_other_call(tls: bool, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path) if tls else None
    for beside, packets in BESIDE.items():

        async def serve(
            number: int, say: Say, packets: Callable[[int], list[bytes]] = packets
        ) -> None:
            for packet in packets(number):
                await say(packet)

        async with serving(serve, tls=certificate) as (service, client):
            assert [await ask(client) for _ in range(3)] == [1, 2, 3], beside
            assert service.connections == 3, beside


@pytest.mark.parametrize("make", [answer, chunked])
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_an_answer_that_is_one_keeps_its_connection_in_whatever_pieces_it_comes(
    make: Callable[[int], bytes], size: int
) -> None:
    async def serve(number: int, say: Say) -> None:
        text = make(number)
        for at in range(0, len(text), size):
            await say(text[at : at + size])
            await asyncio.sleep(0)

    async with serving(serve) as (service, client):
        assert [await ask(client) for _ in range(4)] == [1, 2, 3, 4]
        assert service.connections == 1


async def test_what_comes_while_nothing_is_asked_ends_the_connection() -> None:
    for stray in (STRAY, b"\r\n", b"x"):
        async with serving(_answers) as (service, client):
            assert await ask(client) == 1
            service.writers[0].write(stray)
            async with asyncio.timeout(BOUND):
                while not service.writers[0].is_closing():  # noqa: ASYNC110
                    await asyncio.sleep(0)
            assert await ask(client) == 2
            assert service.connections == 2


@pytest.mark.promise("S6-177")
async def test_what_lies_in_the_socket_when_the_next_call_begins_is_not_its_answer() -> None:
    async with serving(_answers) as (service, client):
        assert await ask(client) == 1
        service.writers[0].write(STRAY)  # it is in the socket when this returns
        assert await ask(client) == 2
        assert service.connections == 2


async def test_a_service_that_answers_before_it_is_asked_answers_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem_guardrails.adapters.connections.GREETING_SECONDS", 0.2)

    async with serving(_answers, greeting=STRAY) as (service, client):
        for _ in range(3):
            assert await reason(client) == "broken_off"
        assert service.requests == 0


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}",
        b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    ],
)
async def test_what_is_no_answer_breaks_the_connection_off(text: bytes) -> None:
    async def serve(number: int, say: Say) -> None:
        await say(text if number == 1 else answer(number))

    async with serving(serve) as (service, client):
        assert await reason(client) == "broken_off"
        assert await ask(client) == 2
        assert service.connections == 2


async def test_a_connection_that_rested_too_long_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem_guardrails.adapters.connections.KEEP_ALIVE_SECONDS", -1.0)

    async with serving(_answers) as (service, client):
        assert [await ask(client), await ask(client)] == [1, 2]
        assert service.connections == 2
