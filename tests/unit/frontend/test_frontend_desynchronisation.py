"""Clients behind a proxy share its connections to the frontend: each gets exactly its own answers,
whatever one of them sends.

First with a stand-in for any proxy, which believes that what an attacker sent is one request and
gives the connection to the next client unless it was told to close it; then through real ones, and
one that reads more leniently than those.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from harness import PATIENCE, Harness, say_hello, serving
from one_case import one_case
from proxies import PROXIES, Programs, proxying
from test_frontend_parsing import (
    BODIES,
    CHUNKED,
    HELLO_CHUNKED,
    NO_REQUEST,
    ONE_REQUEST,
    UPGRADES,
    post,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMUGGLED = b"GET /v1/models/smuggled HTTP/1.1\r\nHost: x\r\nX-Rest: "
FAR = b"\r\n" * 70_000 + SMUGGLED
"""More than a server reads at once, and no more than a proxy can send it before the answer. What is
taken for a new request may begin with blank lines.
"""


def victims(name: bytes) -> bytes:
    """A request whose answer says whose it is."""
    return b"GET /v1/models/%b HTTP/1.1\r\nHost: x\r\n\r\n" % name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(model_path: Path) -> AsyncIterator[Harness]:
    async with serving(model_path, say_hello, {}) as harness:
        yield harness


async def one_answer(reader: asyncio.StreamReader) -> bytes:
    """As a proxy reads it: one answer by its length, and nothing more."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
    length = re.search(rb"content-length: (\d+)", head.lower())
    assert length is not None, head
    return head + await asyncio.wait_for(reader.readexactly(int(length[1])), PATIENCE)


ATTACKS: dict[str, bytes] = {
    **{f"{name}, and more": sent + SMUGGLED for name, sent in NO_REQUEST.items()},
    **{name: sent for name, (sent, _) in ONE_REQUEST.items()},
    **{
        f"Upgrade ({upgrade}) with {body}": post(*headers, *BODIES[body][0], body=BODIES[body][1])
        for upgrade, headers in UPGRADES.items()
        for body in BODIES
    },
    **{
        f"Upgrade ({upgrade}) hiding a request": post(
            *headers, b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED, line=line
        )
        for upgrade, headers in UPGRADES.items()
        for line in (b"POST /a HTTP/1.1", b"GET /live HTTP/1.1")
    },
    **{
        f"Upgrade ({upgrade}) hiding a request far behind it": post(
            *headers, b"Content-Length: %d" % len(FAR), body=FAR, line=b"POST /tokenize HTTP/1.1"
        )
        for upgrade, headers in UPGRADES.items()
    },
    "a request hidden far behind a refused head": post(
        b"Content-Length: %d" % len(FAR), body=FAR, line=b"PUT /version HTTP/1.1"
    ),
    "a body where none is read": post(
        b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED, line=b"GET /version HTTP/1.1"
    ),
    "a refused body": post(
        b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED, line=b"PUT /version HTTP/1.1"
    ),
    "a body that is expected": post(
        b"Expect: 100-continue", b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED
    ),
    "an HTTP/1.0 body": post(
        b"Content-Length: %d" % len(SMUGGLED),
        b"Connection: keep-alive",
        body=SMUGGLED,
        line=b"POST /a HTTP/1.0",
    ),
    "a chunk hiding a request": post(
        CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    ),
    "trailers hiding a request": post(
        CHUNKED, body=b"0\r\nX: GET /v1/models/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    ),
}


@pytest.mark.promise("S6-134")
@one_case("name", ATTACKS)
@pytest.mark.parametrize("cut", ["whole", "head first"])
async def test_what_one_client_sent_draws_one_answer_and_never_anothers(
    frontend: Harness, name: str, cut: str
) -> None:
    reader, writer = await frontend.connect()
    head, blank, rest = ATTACKS[name].partition(b"\r\n\r\n")
    if cut == "whole":
        writer.write(ATTACKS[name])
        first = await one_answer(reader)
    else:
        writer.write(head + blank)
        answering = asyncio.ensure_future(one_answer(reader))
        await asyncio.wait((answering,), timeout=0.01)
        writer.write(rest)
        first = await answering
    assert b"smuggled" not in first
    if b"connection: close" in first.lower():
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    else:
        assert name.partition(",")[0] not in NO_REQUEST
        writer.write(victims(b"victim"))
        assert b"`victim`" in await one_answer(reader)
    writer.close()


def begin(address: Path, attack: bytes) -> socket.socket:
    """Send an attack that is spread over several reads of the frontend, which serves nobody
    meanwhile: it then finds all of it, as a busy one does.
    """
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(0.05)
    client.connect(str(address))
    with contextlib.suppress(TimeoutError):
        if attack:
            client.sendall(attack)
            client.recv(1, socket.MSG_PEEK)  # no answer can come
    client.setblocking(False)
    return client


async def collect(reader: asyncio.StreamReader, into: bytearray) -> None:
    """All that comes until the connection ends."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            into += data


@pytest.mark.promise("S6-134")
@pytest.mark.parametrize("proxy", PROXIES)
async def test_clients_of_a_proxy_get_exactly_their_own_answers(
    frontend: Harness, programs: Programs, proxy: str, tmp_path: Path
) -> None:
    """The attacker's requests and the victim's go by the same connection to the frontend."""
    crossed = []
    # Envoy lets the victim wait while it passes on an Upgrade whose end it does not see.
    async with proxying(proxy, programs, frontend.port, tmp_path, read_timeout=2) as address:
        for number, (name, attack) in enumerate(ATTACKS.items()):
            attacker, sending = await asyncio.open_unix_connection(
                sock=begin(address, attack if attack.endswith(FAR) else b"")
            )
            victim, asking = await asyncio.open_unix_connection(address)
            if not attack.endswith(FAR):
                sending.write(attack)
            got = bytearray()
            attackers = asyncio.create_task(collect(attacker, got))
            for turn in range(3):
                whose = b"victim-%d-%d" % (number, turn)
                asking.write(victims(whose))
                answer = await one_answer(victim)
                if not answer.startswith(b"HTTP/1.1 404") or b"`%b`" % whose not in answer:
                    crossed.append((name, "the victim got", answer))
            attackers.cancel()
            for writer in (sending, asking):
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            if b"victim" in got:
                crossed.append((name, "the attacker got", bytes(got)))
        assert await _chat_through(address)
    assert crossed == []


async def _chat_through(address: Path) -> bool:
    """After all that the proxy and the frontend still serve."""
    reader, writer = await asyncio.open_unix_connection(address)
    writer.write(post(CHUNKED, body=HELLO_CHUNKED, line=b"POST /v1/completions HTTP/1.1"))
    answer = await one_answer(reader)
    writer.close()
    return answer.startswith(b"HTTP/1.1 400 ")
