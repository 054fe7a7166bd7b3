"""What one connection may have a frontend keep: requests that are sent ahead of their answers."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_router import Reply
from harness import COMPLETION, PATIENCE, Start, request_bytes, say_hello, say_nothing

from tandem_frontend.http.connection import _AHEAD_BYTES, Connection

ROOT = Path(__file__).parents[3]
FLOOD_BYTES = 100_000_000
ANSWERS = 500
"""That many answers let in 125 MB where each resumes the reading of the socket once."""
MOST_GROWTH_BYTES = 30_000_000
GET = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n"
SMALL_POST = (
    b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: 2\r\n\r\n{}"
)
CHUNKED_POST = (
    b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
)
VERSION = GET % b"/version"
HELD = "tandem_frontend_held_bytes"


class FrontendProcess:
    def __init__(self, pid: int, port: int) -> None:
        self._pid = pid
        self.port = port
        self._first = self._peak_bytes()

    def growth_bytes(self) -> int:
        """How much more memory than at its start the process has had at its most."""
        return self._peak_bytes() - self._first

    def _peak_bytes(self) -> int:
        status = Path(f"/proc/{self._pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(model_path: Path) -> AsyncIterator[FrontendProcess]:
    """A frontend that has no router."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tandem_frontend"),
        *("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"),
        *("--router", "127.0.0.1:1", "--log-format", "json"),
        *("--model-path", str(model_path)),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(60):
        said: dict[str, Any] = {}
        while said.get("message") != "serving":
            said = json.loads(await process.stderr.readline())
    rest = asyncio.create_task(process.stderr.read())
    port = int(said["address"].rpartition(":")[2])
    yield FrontendProcess(process.pid, port)
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        await process.wait()
        await rest


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.promise("S6-560")
@pytest.mark.parametrize(
    "request_",
    [GET % b"/v1/models", GET % b"/nothing", SMALL_POST, CHUNKED_POST],
    ids=["answers", "not found", "bodies", "chunked bodies"],
)
async def test_a_flood_of_requests_by_one_connection_takes_no_memory(
    process: FrontendProcess, request_: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
    part = request_ * (256 * 1024 // len(request_))

    async def flood() -> None:
        for _ in range(FLOOD_BYTES // len(part)):
            writer.write(part)
            await writer.drain()

    flooding = asyncio.create_task(flood())
    answers = 0
    async with asyncio.timeout(PATIENCE * 6):
        while answers < ANSWERS:
            answers += (await reader.readuntil(b"HTTP/1.1 ")).count(b"HTTP/1.1 ")
    flooding.cancel()
    writer.transport.abort()
    assert process.growth_bytes() < MOST_GROWTH_BYTES


async def send_ahead(port: int, size: int) -> socket.socket:
    """A request, and `size` bytes of further ones behind it. Nothing is read."""
    client = socket.socket()
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    body = json.dumps(COMPLETION).encode()
    more = VERSION * (size // len(VERSION))
    await loop.sock_sendall(client, request_bytes(body, path="/v1/completions") + more)
    return client


@pytest.mark.promise("S6-560")
async def test_what_waits_unread_counts_among_what_is_held(start: Start) -> None:
    frontend = await start(say_nothing)
    with await send_ahead(frontend.port, 0):
        await frontend.router.until(lambda router: len(router.replies) == 1)
        alone = await frontend.metric(HELD)
    await frontend.until_metric("tandem_frontend_open_requests", 0)
    assert await frontend.metric(HELD) == 0
    with await send_ahead(frontend.port, 60_000):
        await frontend.until_metric(HELD, alone + 60_000 // len(VERSION) * len(VERSION))
    await frontend.until_metric(HELD, 0)


@pytest.mark.promise("S6-560")
async def test_a_connection_is_refused_that_sends_what_no_memory_is_left_for(start: Start) -> None:
    frontend = await start(say_nothing, max_held_bytes=160_000, max_body_bytes=80_000)
    first = await send_ahead(frontend.port, 60_000)
    await frontend.router.until(lambda router: len(router.replies) == 1)
    second = await send_ahead(frontend.port, 0)
    await frontend.router.until(lambda router: len(router.replies) == 2)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(second, b"x" * 65_000)
    answer = await asyncio.wait_for(loop.sock_recv(second, 65_536), PATIENCE)
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"queue_full" in answer
    second.close()
    await frontend.router.until(lambda router: len(router.cancels) == 1)
    first.close()
    await frontend.until_metric(HELD, 0)


@pytest.mark.promise("S6-560")
async def test_nothing_of_uvicorn_resumes_the_reading_of_a_socket(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever uvicorn asks of its flow control, what waits unread stays within the bound."""
    most = 0
    came = asyncio.Event()
    real = Connection.data_received

    def resume_and_receive(self: Connection, data: bytes) -> None:
        nonlocal most
        real(self, data)
        if not self.transport.is_closing():
            most = max(most, self.parser.unread - len(data))
            if self.parser.unread:
                came.set()
            self.flow.pause_reading()
            self.flow.resume_reading()

    go_on = asyncio.Event()

    async def wait(reply: Reply) -> None:
        await go_on.wait()
        await say_hello(reply)

    monkeypatch.setattr(Connection, "data_received", resume_and_receive)
    frontend = await start(wait)
    reader, writer = await frontend.connect()
    writer.write(request_bytes(json.dumps(COMPLETION).encode(), path="/v1/completions"))
    writer.write(VERSION * 200_000)
    await frontend.router.until(lambda router: len(router.replies) == 1)
    await asyncio.wait_for(came.wait(), PATIENCE)
    for _ in range(100):  # turns of the loop, each of which would read what lies in the socket
        await asyncio.sleep(0)
    assert most <= _AHEAD_BYTES
    go_on.set()
    await asyncio.wait_for(reader.readuntil(b'{"version"'), PATIENCE)
    writer.transport.abort()


async def test_a_client_of_http_1_0_is_not_told_to_go_on(start: Start) -> None:
    """RFC 9110, 10.1.1: a server ignores `Expect` in a request of HTTP/1.0."""
    frontend = await start(say_nothing)
    answer = await frontend.raw(
        b"POST /tokenize HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"expect: 100-continue\r\ncontent-length: 16\r\n\r\n" + b'{"prompt": "hi"}',
        until_closed=True,
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
