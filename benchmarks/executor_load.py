"""Requests of one Python program through the Executor API: closed loop, one thread or one task that
enqueues, awaits and reads every token.

It is a process of its own, as load.py is for HTTP, and does the same work: as many requests at a
time, of as many tokens. Prints one JSON object.

    python benchmarks/executor_load.py 127.0.0.1:7000 --streams 64 --requests 256 --tokens 128
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import uvloop

from tandem_executor import AsyncExecutor, Executor, Request, Response

PROMPT_TOKENS = 60
"""About as many as those of load.py's requests."""
FIRST_TOKEN, LAST_TOKEN = 300, 2000
SECONDS = 120.0


@dataclass
class Program:
    """What the program still has to ask, and what it was answered."""

    requests: int
    waiting: Iterator[Request]
    tokens: int = 0
    failed: int = 0
    finished: int = 0
    started: float = field(default_factory=time.perf_counter)
    spent: float = field(default_factory=time.process_time)

    def read(self, responses: Sequence[Response]) -> list[Request]:
        """Take responses; returns the requests that are to be enqueued for those that ended."""
        if not responses:
            raise TimeoutError(f"no response for {SECONDS:g} seconds")
        ended = 0
        for response in responses:
            if response.has_error():
                self.failed += 1
                ended += 1
                continue
            self.tokens += len(response.result.output_token_ids[0])
            ended += response.result.is_final
        self.finished += ended
        return [request for _, request in zip(range(ended), self.waiting, strict=False)]

    def result(self) -> dict[str, float]:
        return {
            "tokens": self.tokens,
            "requests": self.requests,
            "failed": self.failed,
            "seconds": time.perf_counter() - self.started,
            "cpu_seconds": time.process_time() - self.spent,
        }


def prompt(seed: int) -> list[int]:
    return random.Random(seed).choices(range(FIRST_TOKEN, LAST_TOKEN), k=PROMPT_TOKENS)


def request(tokens: int, seed: int) -> Request:
    return Request(prompt(seed), max_tokens=tokens, streaming=True)


def by_thread(router: str, streams: int, given: Sequence[Request]) -> dict[str, float]:
    with Executor(router) as executor:
        executor.await_responses(executor.enqueue_request(request(1, 0)), SECONDS)
        program = Program(len(given), iter(given[streams:]))
        executor.enqueue_requests(given[:streams])
        while program.finished < len(given):
            if more := program.read(executor.await_responses(timeout=SECONDS)):
                executor.enqueue_requests(more)
        return program.result()


async def by_task(router: str, streams: int, given: Sequence[Request]) -> dict[str, float]:
    async with AsyncExecutor(router) as executor:
        await executor.await_responses(executor.enqueue_request(request(1, 0)), SECONDS)
        program = Program(len(given), iter(given[streams:]))
        executor.enqueue_requests(given[:streams])
        while program.finished < len(given):
            if more := program.read(await executor.await_responses(timeout=SECONDS)):
                executor.enqueue_requests(more)
        return program.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("router", help="host:port")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--asyncio", action="store_true", help="AsyncExecutor instead of Executor")
    options = parser.parse_args()
    given = [request(options.tokens, seed) for seed in range(options.requests)]
    if options.asyncio:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(by_task(options.router, options.streams, given))
    else:
        result = by_thread(options.router, options.streams, given)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
