"""Generate calls for a model of which no pair has come yet: they wait where one may still come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from fake_fleet import soon, until
from test_router_servicer import FakeWorker, closed, generate_request, rows, started

from tandem.v1 import common_pb2, router_pb2, router_pb2_grpc
from tandem.wire.grpc import open_channel
from tandem_router import debug, metrics
from tandem_router.config import RouterConfig
from tandem_router.server import RunningRouter, running
from tandem_router.servicer import CODE_METADATA

pytestmark = pytest.mark.promise("S5-223")

NOWHERE = "127.0.0.1:1"


class Early:
    """A router whose workers have not come, and calls of it."""

    def __init__(self, router: RunningRouter, stub: router_pb2_grpc.RouterAsyncStub) -> None:
        self.router = router
        self._stub = stub
        self._asked: list[asyncio.Task[str]] = []

    def ask(self, model: str = "tiny", timeout_ms: int = 20_000, n: int = 1) -> asyncio.Task[str]:
        """What it comes to: the text, or an error's code."""
        request = generate_request(n, model=model)
        request.timeout_ms = timeout_ms
        self._asked.append(asyncio.create_task(self._ask(request)))
        return self._asked[-1]

    async def leave(self) -> None:
        """Cancel what is still asked, and wait for it: gRPC would find a loop that is closed."""
        for each in self._asked:
            each.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)

    async def _ask(self, request: router_pb2.GenerateRequest) -> str:
        try:
            return "".join([each.text async for each in self._stub.Generate(request)])
        except grpc.aio.AioRpcError as error:
            return str(dict(error.trailing_metadata() or ()).get(CODE_METADATA))

    async def waiting(self, sequences: int) -> None:
        await until(lambda: self.router.relay.early == sequences)


@asynccontextmanager
async def early(**settings: Any) -> AsyncIterator[Early]:
    async with AsyncExitStack() as stack:
        config = RouterConfig(listen="127.0.0.1:0", **settings)
        router = await stack.enter_async_context(running(config))
        channel = open_channel(f"127.0.0.1:{router.port}")
        stack.push_async_callback(channel.close)
        stub: router_pb2_grpc.RouterAsyncStub = router_pb2_grpc.RouterStub(channel)
        here = Early(router, stub)
        stack.push_async_callback(here.leave)
        yield here


@asynccontextmanager
async def workers() -> AsyncIterator[tuple[FakeWorker, FakeWorker]]:
    """A pair that listens; `_answer` answers for it."""
    pair = FakeWorker(common_pb2.PHASE_PREFILL), FakeWorker(common_pb2.PHASE_DECODE)
    async with AsyncExitStack() as stack:
        for each in pair:
            await each.start()
            stack.push_async_callback(each.stop)
        yield pair


async def _answer(prefill: FakeWorker, decode: FakeWorker) -> int:
    """One request, to its end. Returns the time that decode was given, in milliseconds."""
    first, second = await soon(prefill.starts.get()), await soon(decode.starts.get())
    prefill.say(closed(first.leg))
    payload = rows((second.sequence, "hi"), finish={second.sequence: 1})
    decode.say(started(second.leg), closed(second.leg), **{f"to_{second.destination}": payload})
    return second.timeout_ms


@pytest.mark.parametrize("settings", [{"expected_models": ("tiny",)}, {}])
async def test_a_call_waits_for_the_first_pair_and_is_answered(settings: dict[str, Any]) -> None:
    """Where the model is named, and where workers are listed that have not said theirs."""
    async with workers() as (prefill, decode):
        address, listed = decode.address, (prefill.address,)
        await decode.stop()
        await prefill.stop()
        async with early(
            prefill=listed, decode=(address,), pair_wait_seconds=20.0, **settings
        ) as here:
            asked = here.ask(timeout_ms=19_000)
            await here.waiting(1)
            await asyncio.sleep(0.3)
            await decode.start(address)
            await prefill.start(listed[0])
            left = await _answer(prefill, decode)
            assert await soon(asked) == "hi"
            assert left < 18_800, "it waited"
            assert here.router.relay.early == 0
            assert here.router.relay.budget.held == 0


async def test_a_call_for_what_nobody_expects_is_refused_at_once() -> None:
    async with early(expected_models=("tiny",), pair_wait_seconds=60.0) as here:
        assert await soon(here.ask("other")) == "no_pair"
    async with early(pair_wait_seconds=60.0) as here:
        assert await soon(here.ask()) == "no_pair"


async def test_once_a_worker_has_said_its_model_no_other_is_expected() -> None:
    async with (
        workers() as (prefill, _),
        early(prefill=(prefill.address,), decode=(NOWHERE,), pair_wait_seconds=60.0) as here,
    ):
        await until(lambda: bool(here.router.relay.fleet.models))
        assert await soon(here.ask("other")) == "model_not_found"
        here.ask()
        await here.waiting(1)


async def test_the_wait_is_bounded_by_its_setting_and_by_the_call_s_own_time() -> None:
    async with early(expected_models=("tiny",), pair_wait_seconds=0.3) as here:
        assert await soon(here.ask()) == "no_pair"
    async with early(expected_models=("tiny",), pair_wait_seconds=60.0) as here:
        assert await soon(here.ask(timeout_ms=200)) in ("no_pair", "deadline_exceeded")


async def test_no_more_wait_than_may_and_one_that_leaves_makes_room() -> None:
    async with early(expected_models=("tiny",), pair_wait_seconds=60.0, max_queue=2) as here:
        first = here.ask(n=2)
        await here.waiting(2)
        assert await soon(here.ask()) == "queue_full"
        first.cancel()
        await here.waiting(0)
        assert here.router.relay.budget.held == 0
        here.ask()
        await here.waiting(1)


async def test_a_router_that_drains_lets_nobody_wait() -> None:
    async with early(expected_models=("tiny",), pair_wait_seconds=60.0) as here:
        asked = here.ask()
        await here.waiting(1)
        here.router.relay.drain()
        assert await soon(asked) == "draining"


async def test_the_queue_of_the_metrics_counts_them() -> None:
    async with early(expected_models=("tiny",), pair_wait_seconds=60.0) as here:
        here.ask(n=3)
        await here.waiting(3)
        registry = metrics.new_registry(
            lambda: metrics.read(here.router.relay, here.router.workers)
        )
        assert registry.get_sample_value("tandem_router_queue_length") == 3
        told = json.loads(debug.fleet(here.router.relay, here.router.workers).body)
        assert told["queue_length"] == 3
