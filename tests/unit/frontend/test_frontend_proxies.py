"""Streams through nginx, HAProxy and Envoy: what is silent for longer than they wait, and the
settings that docs/proxies.md advises.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path

import httpx
import pytest
from fake_router import Reply
from harness import CHAT, PATIENCE, Start, events, stream_text
from proxies import NGINX, Programs, proxying, running

from tandem_frontend.config import FrontendConfig

PROXIES = ("nginx", "haproxy", "envoy")
READ_TIMEOUT = 2
KEEP_ALIVE = 0.5
ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "proxies.md").read_text(encoding="utf-8")


async def say_after_a_silence(reply: Reply) -> None:
    """Longer than a proxy waits; `n` outputs: behind the first text."""
    if reply.submit.n > 1:
        reply.text("Hel")
        await reply.flush()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reply.cancelled.wait(), 1.5 * READ_TIMEOUT)
    reply.text("lo")
    for output in range(reply.submit.n):
        reply.finish(output=output)


async def whole(client: httpx.AsyncClient, outputs: int) -> str | None:
    """The text of a stream that ended well; None: it was cut, or never began."""
    try:
        answer = await client.post(
            "/v1/chat/completions", json={**CHAT, "stream": True, "n": outputs}
        )
    except httpx.RemoteProtocolError:
        return None
    return stream_text(events(answer.text)) if answer.status_code == 200 else None


@pytest.mark.promise("S6-320")
@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("seconds", [KEEP_ALIVE, 0])
async def test_a_proxy_cuts_a_silent_stream_unless_it_is_kept_alive(
    start: Start, programs: Programs, proxy: str, seconds: float, tmp_path: Path
) -> None:
    frontend = await start(say_after_a_silence, sse_keep_alive_seconds=seconds)
    waits = {"read_timeout": READ_TIMEOUT, "connections": 2}
    async with (
        proxying(proxy, programs, frontend.port, tmp_path, **waits) as address,
        through(address) as client,
    ):
        before, amid = await asyncio.gather(whole(client, 1), whole(client, 2))
    assert (before, amid) == (("lo", "Hello") if seconds else (None, None))


def through(address: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(address))
    return httpx.AsyncClient(transport=transport, base_url="http://proxy", timeout=PATIENCE)


FRONTEND = {
    "nginx": ("127.0.0.1:8000", "127.0.0.1:{port}"),
    "haproxy": ("127.0.0.1:8000", "127.0.0.1:{port}"),
    "envoy": ("127.0.0.1, port_value: 8000", "127.0.0.1, port_value: {port}"),
}
LISTENER = {
    "nginx": ("listen 8080", "listen unix:{folder}/socket"),
    "haproxy": ("bind :8080", "bind unix@{folder}/socket"),
    "envoy": (
        "{socket_address: {address: 0.0.0.0, port_value: 8080}}",
        '{{pipe: {{path: "{folder}/socket"}}}}',
    ),
}
"""What the page's settings say, and what a test says in its place."""


def advised(program: str, port: int, folder: Path) -> str:
    """The settings of the page, for a frontend at `port`, and listening on `folder`'s socket."""
    language = {"envoy": "yaml"}.get(program, program)
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for said, instead in (FRONTEND[program], LISTENER[program]):
        assert text.count(said) == 1
        text = text.replace(said, instead.format(port=port, folder=folder))
    if program != "nginx":
        return str(text)
    own = NGINX.format(folder=folder, port=port, buffering="on", read_timeout=1, connections=1)
    return own.partition("    upstream")[0] + text + "}\n"


@pytest.mark.promise("S6-320")
@pytest.mark.parametrize("proxy", PROXIES)
async def test_the_advised_settings_pass_each_event_on_as_it_comes(
    start: Start, programs: Programs, proxy: str, tmp_path: Path
) -> None:
    seen = asyncio.Event()

    async def script(reply: Reply) -> None:
        reply.text("Hel")
        await reply.flush()
        await seen.wait()
        reply.text("lo")
        reply.finish()

    frontend = await start(script, sse_keep_alive_seconds=KEEP_ALIVE)
    settings = advised(proxy, frontend.port, tmp_path)
    async with (
        running(proxy, settings, programs, tmp_path) as address,
        through(address) as client,
        client.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        comments = 0
        async for line in lines:
            comments += line.startswith(":")
            if comments == 2:
                break
        seen.set()
        rest = [line async for line in lines]
    assert any('"lo"' in line for line in rest)
    assert "data: [DONE]" in rest


@pytest.mark.promise("S6-320")
@pytest.mark.parametrize("proxy", PROXIES)
async def test_the_advised_settings_take_a_body_as_long_as_the_frontend_does(
    start: Start, programs: Programs, proxy: str, tmp_path: Path
) -> None:
    frontend = await start(say_after_a_silence)
    settings = advised(proxy, frontend.port, tmp_path)
    padded = json.dumps(CHAT).encode().ljust(FrontendConfig(model_path="m").max_body_bytes)
    async with running(proxy, settings, programs, tmp_path) as address, through(address) as client:
        for body, status in ((padded + b" ", 413), (padded[:-1] + b"?", 400)):
            answer = await client.post("/v1/chat/completions", content=body)
            assert answer.status_code == status


async def test_an_upgrade_ends_at_envoy_with_the_advised_settings(
    start: Start, programs: Programs, tmp_path: Path
) -> None:
    frontend = await start(say_after_a_silence)
    settings = advised("envoy", frontend.port, tmp_path)
    upgrade = {"connection": "upgrade", "upgrade": "websocket"}
    async with (
        running("envoy", settings, programs, tmp_path) as address,
        through(address) as client,
    ):
        answer = await client.post("/v1/chat/completions", json=CHAT, headers=upgrade)
    assert answer.status_code == 403
