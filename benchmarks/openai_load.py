"""Requests of one Python program over HTTP by the official client: closed loop, one task for each
stream, which reads the text of every event.

It is to `executor_load.py` what the same program would be without an executor: as many requests at
a time, of as many tokens. Prints one JSON object.

    python benchmarks/openai_load.py http://127.0.0.1:8000 --streams 64 --requests 256 --tokens 128
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import uvloop
from executor_load import prompt
from openai import AsyncOpenAI

MODEL = "tandem-tiny"
SECONDS = 120.0


async def answered(client: AsyncOpenAI, ids: list[int], tokens: int) -> int:
    """The tokens of one answer, of which all text was read."""
    events = await client.completions.create(
        model=MODEL,
        prompt=ids,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    characters = count = 0
    async for event in events:
        for choice in event.choices:
            characters += len(choice.text)
        if event.usage:
            count = event.usage.completion_tokens
    if not characters:
        raise RuntimeError("an answer without text")
    return count


async def stream(client: AsyncOpenAI, waiting: Iterator[list[int]], tokens: int) -> int:
    """One request after the other."""
    return sum([await answered(client, ids, tokens) for ids in waiting])


async def load(url: str, streams: int, requests: int, tokens: int) -> dict[str, float]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    http = httpx.AsyncClient(limits=limits, timeout=SECONDS)
    async with AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http
    ) as client:
        await answered(client, prompt(0), 1)
        waiting = iter([prompt(seed) for seed in range(requests)])
        started, spent = time.perf_counter(), time.process_time()
        made = await asyncio.gather(*(stream(client, waiting, tokens) for _ in range(streams)))
        return {
            "tokens": sum(made),
            "requests": requests,
            "failed": 0,
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - spent,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="URL of the frontend")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        work = load(options.url, options.streams, options.requests, options.tokens)
        print(json.dumps(runner.run(work)))


if __name__ == "__main__":
    main()
