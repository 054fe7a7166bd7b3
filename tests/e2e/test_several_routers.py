"""A frontend before three routers at once, in processes of their own: one is killed, one drains."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from stacks import SIM_READY_SECONDS
from tcp_switch import tcp_switch
from test_handover import PATIENCE, Clients, another_router, ended, finished, port_of, serving

from tandem.free_ports import FreePorts

STREAMS = 30
TOKENS = 100
FAILED = "tandem_frontend_requests_total"
ROUTERS = ("router", "router-2", "router-3")


@pytest.mark.promise("S5-280", "S5-281")
async def test_a_router_that_is_killed_costs_what_it_had_and_one_that_drains_nothing(
    model_path: Path, tmp_path: Path, free: FreePorts
) -> None:
    async with AsyncExitStack() as stack:
        switches = [await stack.enter_async_context(tcp_switch(None)) for _ in ROUTERS]
        served = await stack.enter_async_context(serving(model_path, tmp_path / "run", *switches))
        routers = [served.stack.components["router"]]
        for switch, name in zip(switches[1:], ROUTERS[1:], strict=True):
            routers.append(another_router(served.stack, free, name))
            switch.target = port_of(routers[-1])
        await asyncio.to_thread(served.stack.wait_ready, timeout_seconds=SIM_READY_SECONDS)
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=PATIENCE))
        clients = Clients(served.url, http)
        streams = "tandem_frontend_router_streams"
        await clients.until(
            "every router has a stream",
            lambda: served.metric("frontend", streams, state="current") == len(ROUTERS),
        )
        await _stream(clients, STREAMS)
        assert clients.failures == []
        before = [finished(served, name) for name in ROUTERS]
        assert sum(before) == STREAMS
        assert min(before) >= STREAMS // 10, before

        killed, drains, _ = routers
        asked = asyncio.create_task(_stream(clients, STREAMS))
        await clients.until("all stream", lambda: clients.under_way == 2 * STREAMS)
        # What it has ended may still be on its way to the frontend, and is lost with it.
        had = served.metric("router", "tandem_router_open_sequences")
        had += finished(served, "router") - before[0]
        killed.process.kill()
        switches[0].target = None
        await _stream(clients, STREAMS)
        await asked
        assert clients.failures, "it had nothing"
        assert len(clients.failures) <= had
        lost = served.metric("frontend", FAILED, outcome="router_lost")
        assert lost == len(clients.failures)

        clients.failures.clear()
        clients.under_way = 0
        asked = asyncio.create_task(_stream(clients, STREAMS))
        await clients.until("all stream again", lambda: clients.under_way == STREAMS)
        drains.process.send_signal(signal.SIGTERM)
        await _stream(clients, STREAMS)
        await asked
        assert await ended(drains) == 0
        assert clients.failures == []


async def _stream(clients: Clients, count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(clients.stream(TOKENS))
