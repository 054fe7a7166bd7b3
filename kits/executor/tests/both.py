"""Both executors behind one face, so that a test holds for either."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from fake_router import Reply

from tandem_executor import AsyncExecutor, Executor, ExecutorConfig, Request, Response

SECONDS = 60.0
MODEL = "tandem-tiny"
Start = Callable[..., Any]
"""The fixture of conftest.py."""


class Either(Protocol):
    """An AsyncExecutor, or an Executor whose waiting calls are made in threads."""

    def enqueue_request(self, request: Request) -> int: ...
    def enqueue_requests(self, requests: Sequence[Request]) -> list[int]: ...
    def cancel_request(self, request_id: int) -> None: ...
    def get_num_responses_ready(self, request_id: int | None = None) -> int: ...
    def can_enqueue_requests(self) -> bool: ...
    async def await_responses(
        self, request_ids: Any = None, timeout: timedelta | float | None = None
    ) -> Any: ...
    async def shutdown(self) -> None: ...


class InThreads:
    """An Executor of which only what waits is called from another thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    async def await_responses(
        self, request_ids: Any = None, timeout: timedelta | float | None = None
    ) -> Any:
        return await asyncio.to_thread(self._executor.await_responses, request_ids, timeout)

    async def shutdown(self) -> None:
        await asyncio.to_thread(self._executor.shutdown)


@asynccontextmanager
async def running(kind: str, where: str | Path, config: ExecutorConfig) -> AsyncIterator[Either]:
    """An executor of a kind, "threads" or "asyncio"."""
    if kind == "asyncio":
        async with AsyncExecutor(where, config) as executor:
            yield executor
        return
    executor_of_threads = await asyncio.to_thread(Executor, where, config)
    try:
        yield InThreads(executor_of_threads)
    finally:
        await asyncio.to_thread(executor_of_threads.shutdown)


def request(**changes: Any) -> Request:
    return Request(**{"input_token_ids": [1, 2], "max_tokens": 3} | changes)


async def three_tokens(reply: Reply) -> None:
    for token_id in (11, 12, 13):
        reply.token_ids([token_id])
        await reply.flush()
    reply.finish(length=True)


async def final(executor: Either, request_id: int) -> list[Response]:
    """All responses of a request."""
    responses: list[Response] = []
    async with asyncio.timeout(SECONDS):
        while not responses or not (responses[-1].has_error() or responses[-1].result.is_final):
            responses += await executor.await_responses(request_id, SECONDS)
    return responses


async def ready(executor: Either, count: int, request_id: int | None = None) -> None:
    """Until so many responses are ready."""
    async with asyncio.timeout(SECONDS):
        while executor.get_num_responses_ready(request_id) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
