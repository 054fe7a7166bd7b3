"""A frontend that shuts down lets its clients go without losing a request."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from fake_router import Reply
from harness import (
    CHAT,
    COMPLETION,
    PATIENCE,
    Harness,
    Start,
    events,
    request_bytes,
    say_hello,
    stream_text,
    until,
)
from tcp_switch import TcpSwitch, tcp_switch

ASKED = request_bytes(json.dumps(COMPLETION).encode(), path="/v1/completions")
STREAMED = request_bytes(
    json.dumps({**COMPLETION, "stream": True}).encode(), path="/v1/completions"
)


async def begun(frontend: Harness) -> None:
    frontend.stop.set()
    await frontend.until("/ready", 503)


async def head(reader: asyncio.StreamReader) -> bytes:
    return (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).lower()


async def whole(reader: asyncio.StreamReader) -> bytes:
    """A JSON answer's body."""
    length = int((await head(reader)).partition(b"content-length: ")[2].split(b"\r\n")[0])
    return await asyncio.wait_for(reader.readexactly(length), PATIENCE)


@pytest.mark.parametrize("request_", [ASKED, STREAMED], ids=["collected", "streamed"])
async def test_a_connection_that_was_in_use_is_answered_once_more_and_told_to_close(
    start: Start, request_: bytes
) -> None:
    frontend = await start(say_hello, drain_seconds=PATIENCE)
    reader, writer = await frontend.connect()
    writer.write(ASKED)
    await whole(reader)
    await begun(frontend)
    with pytest.raises(TimeoutError):  # closing it now could lose what is on its way
        await asyncio.wait_for(asyncio.shield(frontend.served), 0.5)
    writer.write(request_)
    answered = await head(reader)
    assert answered.startswith(b"http/1.1 200")
    assert answered.count(b"connection: close") == 1
    rest = await asyncio.wait_for(reader.read(), PATIENCE)  # to the connection's end
    assert b"!" in rest
    assert b"[DONE]" in rest or request_ is ASKED
    writer.close()


async def test_an_answer_that_is_being_made_is_told_to_close_in_its_head(start: Start) -> None:
    async def script(reply: Reply) -> None:
        await go_on.wait()
        await say_hello(reply)

    go_on = asyncio.Event()
    frontend = await start(script, drain_seconds=PATIENCE)
    reader, writer = await frontend.connect()
    writer.write(STREAMED)
    await frontend.router.until(lambda router: len(router.replies) == 1)
    await begun(frontend)
    go_on.set()
    assert b"connection: close" in await head(reader)
    assert b"[DONE]" in await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()


async def test_a_stream_that_had_begun_ends_whole_and_its_connection_has_one_more_answer(
    start: Start,
) -> None:
    async def script(reply: Reply) -> None:
        reply.text("Hel")
        await reply.flush()
        await go_on.wait()
        reply.text("lo!")
        reply.finish()

    go_on = asyncio.Event()
    frontend = await start(script, drain_seconds=PATIENCE)
    reader, writer = await frontend.connect()
    writer.write(STREAMED)
    assert b"connection: close" not in await head(reader)
    await asyncio.wait_for(reader.readuntil(b"Hel"), PATIENCE)
    await begun(frontend)
    go_on.set()
    assert b"[DONE]" in await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), PATIENCE)
    writer.write(ASKED)
    assert b"connection: close" in await head(reader)
    assert b"Hello!" in await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()


async def test_a_connection_that_is_opened_late_is_refused_and_what_was_open_is_finished(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_frontend.http.draining.PATIENCE_SECONDS", 0.0)
    go_on = asyncio.Event()

    async def script(reply: Reply) -> None:
        await go_on.wait()
        reply.text("shown")
        reply.finish()

    frontend = await start(script, drain_seconds=PATIENCE)
    admin = f"http://127.0.0.1:{frontend.metrics_port}"
    assert (await frontend.http.get(f"{admin}/ready")).status_code == 200
    for name in ("drain_seconds", "drain_aborted_total", "draining"):
        assert await frontend.metric(f"tandem_frontend_{name}") == 0
    open_one = asyncio.create_task(frontend.chat())
    await frontend.router.until(lambda router: len(router.replies) == 1)
    await begun(frontend)
    reader, writer = await frontend.connect()
    writer.write(ASKED)
    answered = await head(reader)
    assert answered.startswith(b"http/1.1 503")
    assert b"connection: close" in answered
    assert b"retry-after: 1" in answered
    body = json.loads(await asyncio.wait_for(reader.read(), PATIENCE))
    assert body["error"]["code"] == "draining"
    writer.close()
    for url, status in ((f"{admin}/ready", 503), (f"{admin}/live", 200), ("/live", 200)):
        assert (await frontend.http.get(url)).status_code == status
    assert await frontend.metric("tandem_frontend_draining") == 1
    assert await frontend.metric("tandem_frontend_drain_seconds") > 0
    go_on.set()
    assert (await open_one).json()["choices"][0]["message"]["content"] == "shown"
    await asyncio.wait_for(asyncio.shield(frontend.served), PATIENCE)


async def test_the_process_ends_as_soon_as_its_clients_have_gone(start: Start) -> None:
    frontend = await start(say_hello, drain_seconds=10 * PATIENCE)
    assert (await frontend.chat()).status_code == 200
    await frontend.http.aclose()
    frontend.stop.set()
    await asyncio.wait_for(asyncio.shield(frontend.served), PATIENCE)


async def test_a_client_that_keeps_an_idle_connection_delays_the_end_by_no_more_than_its_time(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_frontend.http.draining.PATIENCE_SECONDS", 0.3)
    frontend = await start(say_hello, drain_seconds=60.0)
    reader, writer = await frontend.connect()
    writer.write(ASKED)
    await whole(reader)
    frontend.stop.set()
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    await asyncio.wait_for(asyncio.shield(frontend.served), PATIENCE)
    writer.close()


# --- real clients, two frontends behind one address ----------------------------------------------


Load = Callable[[str], AsyncGenerator[str, None]]


async def httpx_pool(url: str) -> AsyncGenerator[str, None]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as http:
        while True:
            response = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
            assert response.status_code == 200, response.text
            yield stream_text(events(response.text))


async def curl(url: str) -> AsyncGenerator[str, None]:
    """Two requests by one connection, again and again."""
    asked = ("-sS", "--fail", "-H", "content-type: application/json", "-d", json.dumps(CHAT))
    target = f"{url}/v1/chat/completions"
    while True:
        process = await asyncio.create_subprocess_exec(
            *("curl", *asked, target, "--next", *asked, target),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err
        for body in out.decode().replace("}{", "}\n{").split("\n"):
            yield json.loads(body)["choices"][0]["message"]["content"]


async def load(
    clients: Load, switch: TcpSwitch, count: int, served: list[str], enough: asyncio.Event
) -> None:
    """Ask until it is `enough`. What was asked by then is answered too: nothing is cancelled."""

    async def one() -> None:
        async with aclosing(clients(f"http://{switch.address}")) as texts:
            async for text in texts:
                assert text == "Hello!"
                served.append(text)
                if enough.is_set():
                    return

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())


@pytest.mark.parametrize(
    ("clients", "count", "step"),
    [
        pytest.param(httpx_pool, 16, 60, id="httpx"),
        pytest.param(
            curl,
            2,
            6,
            id="curl",
            marks=pytest.mark.skipif(not shutil.which("curl"), reason="needs curl"),
        ),
    ],
)
async def test_a_frontend_that_is_taken_out_and_drained_under_load_fails_no_request(
    start: Start, clients: Any, count: int, step: int
) -> None:
    """As Kubernetes does it: no new connections, then SIGTERM; connections that are open go on."""
    old = await start(say_hello, drain_seconds=PATIENCE)
    new = await start(say_hello)
    await old.http.aclose()
    served: list[str] = []
    enough = asyncio.Event()
    async with tcp_switch(old.port) as switch:
        running = asyncio.create_task(load(clients, switch, count, served, enough))

        async def grow() -> None:
            goal = len(served) + step
            await until(lambda: len(served) >= goal)

        await grow()
        switch.target = new.port
        old.stop.set()
        await asyncio.wait_for(asyncio.shield(old.served), PATIENCE)
        await grow()
        assert not running.done(), running
        assert len(new.router.replies) >= step // 2
        enough.set()
        await asyncio.wait_for(running, PATIENCE)
