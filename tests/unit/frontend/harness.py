"""What the frontend's tests hold in their hands."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import fake_router
import httpx
import pytest
from openai import AsyncOpenAI

from tandem.engine import model_files
from tandem.keys.ring import digest_of
from tandem.v1 import router_pb2
from tandem_frontend import lifecycle
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai import chat_template
from tandem_frontend.openai.reading import reader

T = TypeVar("T")
MODEL = "tandem-tiny"
PATIENCE = 60.0
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
"""How a client may have its answer."""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
COMPLETION = {"model": MODEL, "prompt": "Hello"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT["messages"]},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": CHAT["messages"], "max_tokens": 9},
}
"""A small request of each dialect, without its model."""
SHIPPED = Path(__file__).resolve().parents[3] / "model" / MODEL


def _shipped_once(load: Callable[[Path], T]) -> Callable[[Path], T]:
    """The shipped model's files do not change: each frontend would read and compile them, which is
    half the CPU time of its start.
    """
    known = cache(load)
    return lambda path: known(path) if path == SHIPPED else load(path)


reader.ModelTokenizer = _shipped_once(reader.ModelTokenizer)  # type: ignore[misc, assignment]
chat_template.load = _shipped_once(chat_template.load)


@dataclass
class Harness:
    router: fake_router.FakeRouter
    stop: asyncio.Event
    served: asyncio.Task[None]
    port: int
    metrics_port: int
    http: httpx.AsyncClient
    openai: AsyncOpenAI
    tokenizer_sha256: str
    trust: ssl.SSLContext | None = None
    """How clients trust it; None: it speaks plain HTTP."""

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=CHAT | fields)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json=COMPLETION | fields)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("localhost", self.port, ssl=self.trust, limit=1 << 24)

    async def raw(self, sent: bytes, *, until_closed: bool = False) -> bytes:
        """Send bytes; what comes back, up to a body's first brace or the connection's end."""
        reader, writer = await self.connect()
        writer.write(sent)
        reading = reader.read() if until_closed else reader.readuntil(b"}")
        answer = await asyncio.wait_for(reading, PATIENCE)
        writer.close()
        return answer

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a series' samples that have these labels."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        text = (await self.http.get(url)).text
        found = [
            float(match[2])
            for match in re.finditer(rf"^{name}(\{{.*\}})? (\S+)$", text, re.MULTILINE)
            if all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items())
        ]
        assert found, f"there is no {name} with {labels}"
        return sum(found)

    async def until(self, path: str, status: int) -> httpx.Response:
        """Wait until `path` answers with `status`."""
        return await until(lambda: self.http.get(path), lambda found: found.status_code == status)

    async def until_metric(self, name: str, value: float, **labels: str) -> None:
        await until(lambda: self.metric(name, **labels), lambda found: found == value)

    async def set_fleet(self, **changes: Any) -> None:
        """Have its router tell of such workers, and wait until the frontend knows."""
        self.router.change_fleet(self.fleet(ready_pairs=0))
        await self.until("/ready", 503)
        self.router.change_fleet(self.fleet(**changes))
        await self.until("/ready", 200)

    def fleet(self, **changes: Any) -> router_pb2.Fleet:
        return fake_router.fleet(
            **{"model": MODEL, "tokenizer_sha256": self.tokenizer_sha256} | changes
        )


async def until(
    ask: Callable[[], Awaitable[T] | T], good: Callable[[T], object] = operator.truth
) -> T:
    """Ask again, where there is no event to wait for, until the answer is good, and return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = ask()
            found = await answer if isinstance(answer, Awaitable) else answer
            if good(found):
                return found
            await asyncio.sleep(0.01)


def replace_file(path: Path, content: str) -> Path:
    """Write a file anew, in one step."""
    fresh = path.with_suffix(".new")
    fresh.write_text(content)
    os.replace(fresh, path)
    return path


def key_line(name: str, **limits: Any) -> str:
    """Of a file of keys: a key that is called as its holder."""
    return json.dumps({"name": name, "sha256": digest_of(name.encode()), **limits}) + "\n"


Start = Callable[..., Awaitable[Harness]]
"""The fixture `start`: a served frontend with these settings."""


@asynccontextmanager
async def serving(
    model_path: Path,
    script: fake_router.Script,
    settings: Mapping[str, Any],
    *,
    trust: ssl.SSLContext | None = None,
    fleet: router_pb2.Fleet | None = None,
    ready: bool = True,
) -> AsyncIterator[Harness]:
    """`trust`: for a frontend that serves HTTPS. `fleet`: what its router tells at first. `ready`:
    wait until it is.
    """
    sha256 = model_files.tokenizer_sha256(model_path)
    fleet = fleet or fake_router.fleet(
        model=MODEL, tokenizer_sha256=sha256, logits_processors=("forced_sequence", "other")
    )
    async with fake_router.running(script, fleet) as router:
        stop = asyncio.Event()
        ports: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        config = FrontendConfig(
            **{
                "listen": "127.0.0.1:0",
                "metrics_listen": "127.0.0.1:0",
                "router": (router.address,),
                "model_path": str(model_path),
                "drain_seconds": 0.2,
                "allowed_hosts": ("*",),
            }
            | dict(settings)
        )
        served = asyncio.create_task(
            lifecycle.serve(config, stop, on_started=lambda *both: ports.set_result(both))
        )
        port, metrics_port = await asyncio.wait_for(ports, PATIENCE)
        url = f"https://localhost:{port}" if trust else f"http://127.0.0.1:{port}"
        verify = trust or True
        key = config.api_keys[0] if config.api_keys else "none"
        headers = {"authorization": f"Bearer {key}"}
        async with (
            httpx.AsyncClient(
                base_url=url, headers=headers, timeout=PATIENCE, verify=verify
            ) as http,
            httpx.AsyncClient(verify=verify) as for_openai,
            AsyncOpenAI(
                base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=for_openai
            ) as openai,
        ):
            harness = Harness(router, stop, served, port, metrics_port, http, openai, sha256, trust)
            await harness.until("/ready" if ready else "/live", 200)
            yield harness
            if not stop.is_set():
                await harness.until_metric("tandem_frontend_open_requests", 0)
                assert await harness.metric("tandem_frontend_backlog_bytes") == 0
                await harness.until_metric("tandem_frontend_held_bytes", 0)
        stop.set()
        await asyncio.wait_for(served, PATIENCE)
        mine = [task for task in asyncio.all_tasks() if "frontend" in repr(task.get_coro())]
        assert [task for task in mine if "pytest" not in repr(task)] == []


def error_of(response: httpx.Response) -> tuple[int, str, str | None]:
    """Status, code and param of an answer that must be an error of OpenAI's shape."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return response.status_code, error["code"], error["param"]


def events(body: str) -> list[dict[str, Any]]:
    """The JSON events of a stream that ended with [DONE], without its comments."""
    lines = [line for line in body.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def stream_text(chunks: list[dict[str, Any]], choice: int = 0) -> str:
    """A choice's text, from chunks of either endpoint."""
    mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in mine)


def request_bytes(body: bytes, *, path: str = "/v1/chat/completions", head: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n%b\r\n%b" % (
        path.encode(),
        len(body),
        head,
        body,
    )


async def say_hello(reply: fake_router.Reply) -> None:
    """Three rows and an end for each output."""
    for output in range(reply.submit.n):
        for text in ("Hel", "lo", "!"):
            reply.text(text, output=output)
            await reply.flush()
        reply.finish(output=output, completion_tokens=3)
    await reply.flush()


async def say_nothing(reply: fake_router.Reply) -> None:
    """Takes the request and waits for its cancellation."""
    await reply.cancelled.wait()


async def say_without_end(reply: fake_router.Reply) -> None:
    """More than any client's bounds, until it is cancelled."""
    while not reply.cancelled.is_set():
        reply.text("x" * 10_000)
        await reply.flush()


async def say_much(reply: fake_router.Reply) -> None:
    """4 MB, more than sockets buffer, and no end."""
    for _ in range(400):
        if reply.cancelled.is_set():
            return
        reply.text("x" * 10_000)
        await reply.flush()
    await reply.cancelled.wait()
