"""Frontends and real routers that drain: nothing is lost between them, and nothing runs twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from echo_workers import ROWS, EchoWorker, echo_worker
from harness import COMPLETION, MODEL, PATIENCE, Start, events, say_hello, stream_text
from tcp_switch import TcpSwitch, tcp_switch

from tandem import ids
from tandem.engine import model_files
from tandem.v1 import common_pb2
from tandem_router.config import RouterConfig
from tandem_router.server import RunningRouter, running

CLIENTS = 12
ROUTERS = 4
WHOLE = "".join(ROWS)


class Deployment:
    """Routers one after the other behind one address, before the same two workers."""

    def __init__(self, switch: TcpSwitch, workers: list[EchoWorker], config: RouterConfig) -> None:
        self.switch = switch
        self.workers = workers
        self._config = config
        self._over = asyncio.Event()
        self._router: RunningRouter | None = None
        self._ended: asyncio.Task[None] | None = None

    async def replace(self, *, overlap: bool) -> None:
        """Start a router, if there is one then drain it, and wait until it has ended. Without
        `overlap` the old one ends first.
        """
        if not overlap:
            await self.end()
        old, leave = self._ended, self._over
        self._over = asyncio.Event()
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.create_task(self._run(ready, self._over))
        self.switch.target = await asyncio.wait_for(ready, PATIENCE)
        leave.set()
        if old is not None:
            await asyncio.wait_for(old, PATIENCE)

    async def end(self) -> None:
        self._over.set()
        if self._ended is not None:
            await asyncio.wait_for(self._ended, PATIENCE)

    async def _run(self, ready: asyncio.Future[int], over: asyncio.Event) -> None:
        async with running(self._config) as router:
            async with asyncio.timeout(PATIENCE):
                while True:
                    if router.relay.ready:
                        break
                    await asyncio.sleep(0.005)
            ready.set_result(router.port)
            await over.wait()
            await router.drain(PATIENCE)


@asynccontextmanager
async def echoing(model_path: Path) -> AsyncIterator[tuple[list[EchoWorker], RouterConfig]]:
    """A worker of each phase, and how a router before them is set."""
    fingerprint = common_pb2.Fingerprint(
        model=MODEL, tokenizer_sha256=model_files.tokenizer_sha256(model_path)
    )
    async with AsyncExitStack() as stack:
        workers, addresses = [], []
        for phase in (common_pb2.PHASE_PREFILL, common_pb2.PHASE_DECODE):
            worker, address = await stack.enter_async_context(echo_worker(phase, fingerprint))
            workers.append(worker)
            addresses.append(address)
        yield (
            workers,
            RouterConfig(listen="127.0.0.1:0", prefill=(addresses[0],), decode=(addresses[1],)),
        )


@pytest.fixture
async def deployment(model_path: Path) -> AsyncIterator[Deployment]:
    async with echoing(model_path) as (workers, config), tcp_switch(None) as switch:
        made = Deployment(switch, workers, config)
        await made.replace(overlap=True)
        yield made
        await made.end()


@pytest.mark.parametrize("overlap", [True, False], ids=["one beside the other", "one at a time"])
async def test_requests_outlive_every_router_and_none_runs_twice(
    start: Start, deployment: Deployment, overlap: bool
) -> None:
    frontend = await start(say_hello, router=(deployment.switch.address,), trust_traceparent=True)
    over = asyncio.Event()
    asked: list[str] = []
    served = 0

    async def ask(stream: bool) -> None:
        nonlocal served
        while not over.is_set():
            asked.append(ids.new_trace_id())
            response = await frontend.http.post(
                "/v1/completions",
                json={**COMPLETION, "stream": stream},
                headers={"traceparent": f"00-{asked[-1]}-00f067aa0ba902b7-01"},
            )
            assert response.status_code == 200, response.text
            if stream:
                assert stream_text(events(response.text)) == WHOLE
            else:
                assert response.json()["choices"][0]["text"] == WHOLE
            served += 1

    async def goes_on() -> None:
        goal = served + 2 * CLIENTS
        async with asyncio.timeout(PATIENCE):
            while True:
                if served >= goal:
                    return
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(ask(stream=bool(number % 2)))
        for _ in range(ROUTERS):
            await goes_on()
            await deployment.replace(overlap=overlap)
        await goes_on()
        over.set()
    for worker in deployment.workers:
        assert worker.runs == dict.fromkeys(asked, 1)
    name = "tandem_frontend_router_reconnects_total"
    assert await frontend.metric(name, cause="draining") == ROUTERS
    assert await frontend.metric(name, cause="lost") == 0


@pytest.mark.promise("S5-281", "S5-283")
@pytest.mark.parametrize("drains", [True, False], ids=["it drains", "it is lost"])
async def test_of_three_routers_one_leaves_under_load_and_nothing_runs_twice(
    start: Start, model_path: Path, drains: bool
) -> None:
    over = asyncio.Event()
    asked: list[str] = []
    answers: list[int] = []
    async with AsyncExitStack() as stack:
        workers, config = await stack.enter_async_context(echoing(model_path))
        leaving = await stack.enter_async_context(AsyncExitStack())
        routers = [await leaving.enter_async_context(running(config))]
        routers += [await stack.enter_async_context(running(config)) for _ in range(2)]
        frontend = await start(
            say_hello,
            router=tuple(f"127.0.0.1:{each.port}" for each in routers),
            trust_traceparent=True,
        )
        await frontend.until_metric("tandem_frontend_router_streams", 3, state="current")
        await until(lambda: all(each.relay.ready for each in routers))

        async def ask() -> None:
            while not over.is_set():
                asked.append(ids.new_trace_id())
                response = await frontend.http.post(
                    "/v1/completions",
                    json=COMPLETION,
                    headers={"traceparent": f"00-{asked[-1]}-00f067aa0ba902b7-01"},
                )
                answers.append(response.status_code)
                if response.status_code == 200:
                    assert response.json()["choices"][0]["text"] == WHOLE

        async def goes_on() -> None:
            goal = len(answers) + 5 * CLIENTS
            await until(lambda: len(answers) >= goal)

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(ask())
            await goes_on()
            assert min(each.relay.relayed_frames for each in routers) > 0
            if drains:
                await routers[0].drain(PATIENCE)
            await leaving.aclose()
            await goes_on()
            over.set()
        failed = [each for each in answers if each != 200]
        assert set(failed) <= {503}
        assert len(failed) <= (0 if drains else CLIENTS)
        decode = workers[1].runs
        assert set(decode.values()) == {1}
        assert len(decode) >= len(asked) - len(failed)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if holds():
                return
            await asyncio.sleep(0.005)
