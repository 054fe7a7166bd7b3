"""Every gRPC port has the bounds that its component's settings say, and what clients sent to it and
nobody has read takes of its component's budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from raw_peer import Peer, dialled

from tandem.byte_budget import ByteBudget
from tandem.engine.base import Role
from tandem.errors import ConfigError
from tandem.logits.registry import Registry
from tandem.worker.config import WorkerConfig
from tandem.worker.endpoint import Endpoint
from tandem.worker.startup import engine_settings
from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import Code, frame
from tandem_router.config import RouterConfig
from tandem_router.server import running
from tandem_sim import SimEngine

PATIENCE = 60.0
PART = 256 * 1024
"""Bytes that come of a message."""
MESSAGE = 1024 * 1024
Port = tuple[int, ByteBudget]
LIMITS = (
    "grpc_max_connections",
    "grpc_max_connections_of_a_client",
    "grpc_max_connection_idle_seconds",
    "grpc_max_connection_age_seconds",
)


@asynccontextmanager
async def of_a_router(model_path: Path, **settings: Any) -> AsyncIterator[Port]:
    config = RouterConfig(listen="127.0.0.1:0", prefill=("127.0.0.1:1",), **settings)
    async with running(config) as router:
        yield router.port, router.relay.budget


@asynccontextmanager
async def of_a_worker(model_path: Path, **settings: Any) -> AsyncIterator[Port]:
    config = WorkerConfig(model_path=model_path, listen="127.0.0.1:0", **settings)
    budget = ByteBudget()
    endpoint = Endpoint("decode", config, None, budget)
    await endpoint.listen(lambda into: None)
    yield endpoint.port, budget
    await endpoint.stop()


@asynccontextmanager
async def of_kv(model_path: Path, **settings: Any) -> AsyncIterator[Port]:
    config = WorkerConfig(
        model_path=model_path, engine="sim", engine_options={"max_total_tokens": 4096}, **settings
    )
    budget = ByteBudget()
    given = engine_settings("prefill", config, Registry.builtin(), None, budget)
    engine = SimEngine(Role.PREFILL, given)
    try:
        yield int((await engine.start()).kv_endpoint.rpartition(":")[2]), budget
    finally:
        await engine.close()


PORTS: dict[str, Callable[..., AbstractAsyncContextManager[Port]]] = {
    "router": of_a_router,
    "worker": of_a_worker,
    "KV": of_kv,
}


@pytest.mark.promise("S6-406")
@pytest.mark.parametrize("of", PORTS)
async def test_a_port_takes_as_many_connections_as_its_settings_say(
    of: str, model_path: Path
) -> None:
    async with (
        PORTS[of](model_path, grpc_max_connections_of_a_client=2) as (port, _),
        dialled(port) as first,
        dialled(port) as second,
    ):
        await first.find(frames.SETTINGS)
        await second.find(frames.SETTINGS)
        async with dialled(port) as third:
            assert await third.ending() == Code.ENHANCE_YOUR_CALM
        await answered(first)


@pytest.mark.promise("S6-404")
@pytest.mark.parametrize("of", PORTS)
async def test_what_clients_send_and_nobody_reads_takes_of_the_components_budget(
    of: str, model_path: Path
) -> None:
    async with PORTS[of](model_path) as (port, budget):
        before = budget.held
        async with dialled(port) as peer:
            await peer.find(frames.SETTINGS)
            peer.send(peer.request(1, "Watch", service="grpc.health.v1.Health"))
            peer.send(*part_of_a_message())
            await answered(peer)
            assert PART / 2 <= budget.held - before <= 2 * PART


def part_of_a_message() -> list[bytes]:
    """In frames of the first call."""
    data = frames.MESSAGE_HEAD.pack(0, MESSAGE) + bytes(PART)
    size = frames.LEAST_FRAME
    return [frame(frames.DATA, 0, 1, data[at : at + size]) for at in range(0, len(data), size)]


async def answered(peer: Peer) -> None:
    """All that was sent has been taken."""
    peer.send(frame(frames.PING, 0, 0, b"in order"))
    async with asyncio.timeout(PATIENCE):
        while (await peer.find(frames.PING))[3] != b"in order":
            pass


@pytest.mark.promise("S6-406")
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("component", [RouterConfig, WorkerConfig])
def test_bounds_by_which_nobody_could_call_are_refused(component: Any, name: str) -> None:
    others = {"model_path": Path("m")} if component is WorkerConfig else {}
    with pytest.raises(ConfigError, match=name):
        component(**others, **{name: -1})
