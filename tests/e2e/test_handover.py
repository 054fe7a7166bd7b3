"""Routers that are replaced while requests run: every request has its whole answer."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from stacks import MODEL, SIM_READY_SECONDS, Served, options
from tcp_switch import TcpSwitch, tcp_switch

from tandem.cli.stack import Component, Stack
from tandem.free_ports import FreePorts

STREAMS = 50
ARRIVING = 6
TOKENS = 120
PATIENCE = 60.0
LONG: dict[str, Any] = {
    "model": MODEL,
    "prompt": "The for statement is used to",
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


@dataclass
class Clients:
    """Those that stream since before the change, and those that come one after the other."""

    url: str
    http: httpx.AsyncClient
    under_way: int = 0
    arrived: int = 0
    """Served from their arrival on, since the others stream."""
    failures: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, tokens: int) -> None:
        """One request; what is not a whole answer is noted."""
        received, usage, done = 0, None, False
        body = {**LONG, "max_tokens": tokens}
        async with self.http.stream("POST", f"{self.url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                self.failures.append((await response.aread()).decode())
                return
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    usage = event.get("usage") or usage
                    received += 1
                    self.under_way += received == 1
        if not done or usage is None or usage["completion_tokens"] != tokens:
            self.failures.append(f"cut off after {received} events: {usage}")

    async def keep_coming(self) -> None:
        while not self.over.is_set():
            await self.stream(8)
            self.arrived += 1

    async def until(self, what: str, holds: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                if holds():
                    return
                assert not self.failures, (what, self.failures)
                await asyncio.sleep(0.05)


def port_of(component: Component) -> int:
    return int(component.address.rpartition(":")[2])


@asynccontextmanager
async def serving(model_path: Path, run_dir: Path, *switches: TcpSwitch) -> AsyncIterator[Served]:
    """A stack; with `switches` its frontend reaches routers by those. The first leads to one."""
    routers = [switch.address for switch in switches]
    plain = options(
        "sim",
        model_path,
        hook_prefill="",
        hook_decode="",
        engine_options=("step_ms=20",),
        flags={"frontend": (f"--router={','.join(routers)}",)} if switches else {},
    )
    with Stack(plain, run_dir=run_dir) as stack:
        if switches:
            switches[0].target = port_of(stack.components["router"])
        await asyncio.to_thread(stack.wait_ready, timeout_seconds=SIM_READY_SECONDS)
        yield Served("sim", stack, Path())


@asynccontextmanager
async def busy(served: Served) -> AsyncIterator[Clients]:
    """Clients, all of which must have been served when they leave."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as http:
        clients = Clients(served.url, http)
        async with asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(clients.stream(TOKENS))
            for _ in range(ARRIVING):
                group.create_task(clients.keep_coming())
            await clients.until("all stream", lambda: clients.under_way >= STREAMS + ARRIVING)
            yield clients
            clients.over.set()
    assert clients.failures == []


def another_router(stack: Stack, free: FreePorts, name: str = "router-2") -> Component:
    """One more, for the same workers."""
    listen, metrics = free.address(), free.address()
    first = stack.components["router"]
    kept = [flag for flag in first.launch.flags if "listen=" not in flag]
    launch = replace(
        first.launch,
        name=name,
        address=listen,
        metrics=metrics,
        flags=(f"--listen={listen}", f"--metrics-listen={metrics}", *kept),
    )
    stack.components[name] = replace(first, launch=launch, ready=False)
    return stack.restart(name)


async def ended(component: Component) -> int:
    return await asyncio.to_thread(component.process.wait, PATIENCE)


def router_changes(served: Served) -> tuple[float, float]:
    """How often the frontend left a router that drained, and one that was lost."""
    name = "tandem_frontend_router_reconnects_total"
    return (
        served.metric("frontend", name, cause="draining"),
        served.metric("frontend", name, cause="lost"),
    )


def finished(served: Served, router: str) -> float:
    return served.metric(router, "tandem_router_requests_total", outcome="finished")


@pytest.mark.promise("S5-121")
async def test_a_router_that_hands_over_to_another_fails_no_request(
    model_path: Path, tmp_path: Path, free: FreePorts
) -> None:
    async with (
        tcp_switch(None) as switch,
        serving(model_path, tmp_path / "run", switch) as served,
    ):
        first = served.stack.components["router"]
        second = another_router(served.stack, free)
        await asyncio.to_thread(served.stack.wait_ready, timeout_seconds=SIM_READY_SECONDS)
        async with busy(served) as clients:
            before = clients.arrived
            switch.target = port_of(second)
            first.process.send_signal(signal.SIGTERM)
            await clients.until("new ones are served", lambda: clients.arrived >= before + 30)
            assert await ended(first) == 0
        assert router_changes(served) == (1, 0)
        assert finished(served, "router-2") >= 20


@pytest.mark.promise("S5-121")
async def test_a_router_that_is_replaced_at_its_address_fails_no_request(
    model_path: Path, tmp_path: Path
) -> None:
    """Requests wait while there is none."""
    async with serving(model_path, tmp_path / "run") as served:
        async with busy(served) as clients:
            router = served.stack.components["router"]
            router.process.send_signal(signal.SIGTERM)
            assert await ended(router) == 0
            served.stack.restart("router")
            before = clients.arrived
            await clients.until("new ones are served", lambda: clients.arrived >= before + 30)
        assert router_changes(served) == (1, 0)
