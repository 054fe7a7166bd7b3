"""The public port over TLS, on the event loop that frontends run: streams, slow and vanished
clients, and a certificate that is renewed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from authority import Authority, Files
from fake_router import Reply
from harness import (
    COMPLETION,
    MODEL,
    PATIENCE,
    Harness,
    Start,
    request_bytes,
    say_hello,
    say_much,
    say_nothing,
    say_without_end,
)

from tandem.certificates import expiry
from tandem_frontend.http.connection import Connection

STREAM = json.dumps({**COMPLETION, "stream": True}).encode()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "public")


@pytest.fixture
def files(authority: Authority) -> Files:
    return authority.issue("localhost")


@pytest.fixture
def secure(start: Start, files: Files) -> Start:
    """Starts frontends that serve HTTPS."""
    trust = ssl.create_default_context(cafile=files.ca)
    https = {"https_cert": str(files.cert), "https_key": str(files.key)}

    async def go(script: Any, **settings: Any) -> Harness:
        return await start(script, trust=trust, **https, **settings)

    return go


async def shown(frontend: Harness) -> bytes:
    """The certificate that a new client is shown."""
    reader, writer = await frontend.connect()
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    assert reader is not None
    return der


async def test_the_openai_client_streams_over_https(secure: Start) -> None:
    frontend = await secure(say_hello)
    for _ in range(2):  # the second on a kept connection
        stream = await frontend.openai.completions.create(model=MODEL, prompt="Hello", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello!"
    whole = await frontend.openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}]
    )
    assert whole.choices[0].message.content == "Hello!"


async def test_plain_http_gets_nothing_from_it(secure: Start) -> None:
    frontend = await secure(say_hello)
    reader, writer = await asyncio.open_connection("127.0.0.1", frontend.port)
    writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"HTTP" not in await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()


async def test_a_renewed_certificate_is_shown_to_new_clients_and_streams_go_on(
    secure: Start, authority: Authority, files: Files
) -> None:
    renewed = asyncio.Event()

    async def script(reply: Reply) -> None:
        reply.text("before")
        await reply.flush()
        await renewed.wait()
        reply.text(" and after")
        reply.finish()
        await reply.flush()

    frontend = await secure(script)
    first = await shown(frontend)
    reader, writer = await frontend.connect()
    writer.write(request_bytes(STREAM, path="/v1/completions"))
    await asyncio.wait_for(reader.readuntil(b"before"), PATIENCE)
    fresh = authority.issue("localhost", days=9)
    files.replace_by(fresh)
    assert await shown(frontend) == ssl.PEM_cert_to_DER_cert(fresh.cert.read_text()) != first
    renewed.set()
    await asyncio.wait_for(reader.readuntil(b"[DONE]"), PATIENCE)
    writer.close()
    ends = await frontend.metric("tandem_tls_certificate_expiry_seconds", file="https_cert")
    assert ends == expiry(fresh.cert.read_bytes()).timestamp()


@pytest.mark.parametrize("abrupt", [False, True])
async def test_a_client_that_goes_away_is_noticed(secure: Start, abrupt: bool) -> None:
    frontend = await secure(say_nothing)
    _, writer = await frontend.connect()
    writer.write(request_bytes(STREAM, path="/v1/completions"))
    await frontend.router.until(lambda router: len(router.replies) == 1)
    if abrupt:
        writer.transport.abort()
    else:
        writer.close()
    await frontend.router.until(lambda router: len(router.cancels) == 1)
    await frontend.until_metric("tandem_frontend_disconnects_total", 1)


async def unread(frontend: Harness) -> ssl.SSLSocket:
    """A client that has asked for a stream and reads nothing of it."""

    def connect() -> ssl.SSLSocket:
        client = socket.socket()
        client.settimeout(PATIENCE)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", frontend.port))
        assert frontend.trust is not None
        secured = frontend.trust.wrap_socket(client, server_hostname="localhost")
        secured.sendall(request_bytes(STREAM, path="/v1/completions"))
        return secured

    return await asyncio.to_thread(connect)


@pytest.mark.promise("S6-138")
async def test_a_client_that_reads_too_slowly_is_cut_off_and_others_are_not_slowed(
    secure: Start,
) -> None:
    frontend = await secure(say_without_end, max_backlog_bytes=100_000)
    slow = await unread(frontend)
    await frontend.router.until(lambda router: len(router.cancels) == 1)
    await frontend.until_metric("tandem_frontend_slow_clients_total", 1)
    frontend.router.script = say_hello
    assert (await frontend.complete()).json()["choices"][0]["text"] == "Hello!"
    slow.close()


@pytest.mark.promise("S6-138")
async def test_a_client_that_stalls_is_cut_off_after_its_time(secure: Start) -> None:
    frontend = await secure(say_much, max_backlog_bytes=1 << 30, client_stall_seconds=0.3)
    stalled = await unread(frontend)
    await frontend.router.until(lambda router: len(router.cancels) == 1)
    await frontend.until_metric("tandem_frontend_slow_clients_total", 1)
    stalled.close()


async def test_a_slow_reader_within_bounds_gets_everything_in_order(secure: Start) -> None:
    count = 300

    async def script(reply: Reply) -> None:
        for number in range(count):
            reply.text(f"<{number}>" + "x" * 3000)
            await reply.flush()
        reply.finish()

    frontend = await secure(script, max_backlog_bytes=1 << 24)
    slow = await unread(frontend)
    await frontend.until_metric("tandem_frontend_completion_tokens_total", count)

    def read_all() -> bytes:
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            piece = slow.recv(65536)
            assert piece, "the stream was cut"
            received += piece
        return received

    received = await asyncio.to_thread(read_all)
    slow.close()
    positions = [received.index(b"<%d>" % number) for number in range(count)]
    assert positions == sorted(positions)


async def test_a_socket_sends_at_once_and_buffers_no_more_than_without_tls(
    secure: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    transports: list[asyncio.Transport] = []
    made = Connection.connection_made

    def note(self: Connection, transport: asyncio.Transport) -> None:
        made(self, transport)
        transports.append(transport)

    monkeypatch.setattr(Connection, "connection_made", note)
    frontend = await secure(say_hello)
    transport = transports[-1]
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert transport.get_extra_info("ssl_object") is not None
    assert transport.get_write_buffer_limits()[1] == 64 * 1024
    assert (await frontend.complete()).status_code == 200
