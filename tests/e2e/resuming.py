"""Stacks with several decode workers, one of which is killed under its requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import httpx
from stacks import MODEL, SIM_READY_SECONDS, metric_sum

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

TOKENS = 11
BASE: dict[str, Any] = {
    "model": MODEL,
    "prompt": "The for statement is used to",
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "resume": True,
    "stream_options": {"include_usage": True},
}
SEEDED = {"temperature": 0.9, "seed": 7}
SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 9}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": SEEDED,
    "three outputs": SEEDED | {"n": 3},
    "schema": {"guided_json": SCHEMA, "ignore_eos": False},
    "penalties": {"frequency_penalty": 1.5, "presence_penalty": 0.7, "repetition_penalty": 1.3},
    "logprobs": {"logprobs": 3},
    "token ids": {"detokenize": False},
    "processors": {"min_tokens": 9, "logit_bias": {"100": 40}, "ignore_eos": False},
}
PACE = ("step_ms=15",)
UNFORGIVING = ("--canary-seconds=0", "--eject-after-failures=0")
"""A worker that has died again and again gets as much as any other."""


class Answer:
    """What a client has of a stream, in the parts that must be equal."""

    def __init__(self) -> None:
        self.events = 0
        self.texts: dict[int, str] = {}
        self.token_ids: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[Any]] = {}
        self.ends: dict[int, Any] = {}
        self.usage: Any = None
        self.error: Any = None

    def take(self, event: dict[str, Any]) -> None:
        self.events += bool(event.get("choices"))
        self.error = event.get("error", self.error)
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices", ()):
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + choice["text"]
            self.token_ids.setdefault(index, []).extend(choice.get("token_ids") or ())
            if logprobs := choice.get("logprobs"):
                mine = self.logprobs.setdefault(index, [])
                mine += zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
            if choice["finish_reason"]:
                self.ends[index] = choice["finish_reason"], choice.get("stop_reason")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Answer):
            return NotImplemented
        mine, theirs = dict(vars(self), events=0), dict(vars(other), events=0)
        return mine == theirs

    def __repr__(self) -> str:
        return repr(vars(self))


async def answer(
    served: Stack, fields: dict[str, Any], seen: Callable[[int], object] = lambda _: None
) -> Answer:
    """`seen` is told how many events have come."""
    got = Answer()
    url = f"{served.url}/v1/completions"
    async with (
        # Each would read all certificates that the machine trusts, while its neighbours run.
        httpx.AsyncClient(timeout=60, verify=False) as client,
        client.stream("POST", url, json=BASE | fields) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                got.take(json.loads(line.removeprefix("data: ")))
                seen(got.events)
            elif line.startswith("{"):
                got.take(json.loads(line))
    return got


async def begun(served: Stack) -> asyncio.Task[Answer]:
    """A long request that runs, so that no other is alone with a worker."""
    runs = asyncio.Event()
    fields = {"max_tokens": 2000, "resume": False}
    task = asyncio.create_task(answer(served, fields, lambda _: runs.set()))
    await runs.wait()
    return task


async def let_go(tasks: Collection[asyncio.Task[Any]]) -> None:
    """End them with their connections, for which a frontend that stops would wait."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def kill(served: Stack, name: str) -> None:
    os.kill(served.components[name].pid, signal.SIGKILL)


async def metrics(served: Stack, component: str) -> str:
    address = served.components[component].launch.metrics
    async with httpx.AsyncClient(timeout=10) as client:
        return (await client.get(f"http://{address}/metrics")).text


async def until(holds: Callable[[], Awaitable[bool]], *, within: float) -> None:
    async with asyncio.timeout(within):
        while not await holds():  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.05)


async def whole(served: Stack, within: float = SIM_READY_SECONDS) -> None:
    """Until both pairs take work."""

    async def stands() -> bool:
        text = await metrics(served, "router")
        return metric_sum(text, "tandem_router_ready_pairs", {}) == 2

    await until(stands, within=within)


async def resumed(served: Stack, outcome: str) -> float:
    text = await metrics(served, "router")
    return metric_sum(text, "tandem_router_resumed_total", {"outcome": outcome})


def serving(
    model_path: Path,
    run_dir: Path,
    settings: dict[str, Any] | None = None,
    *,
    ready_seconds: float = SIM_READY_SECONDS,
    **changes: Any,
) -> Iterator[Stack]:
    """Two decode workers, with these settings."""
    flags = {"router": UNFORGIVING, **changes.pop("flags", {})}
    if settings:
        run_dir.mkdir(parents=True)
        file = run_dir / "decode.yaml"
        file.write_text(json.dumps(settings))
        flags["decode_worker"] = (f"--config={file}",)
    options = StackOptions(
        **{
            "model_path": model_path,
            "engine": "sim",
            "decode": 2,
            "engine_options": PACE,
            "flags": flags,
        }
        | changes
    )
    with Stack(options, run_dir=run_dir / "run") as stack:
        stack.wait_ready(timeout_seconds=ready_seconds)
        yield stack
