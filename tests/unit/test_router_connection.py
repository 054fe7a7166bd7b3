"""A worker that cannot be reached is dialled again and again: a dial must leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest
from fake_fleet import SECONDS

from tandem.free_ports import FreePorts
from tandem_router.config import RouterConfig
from tandem_router.connection import WorkerConnection
from tandem_router.core.values import Phase
from tandem_router.discovery.base import Listed
from tandem_router.relay import Relay
from tandem_router.server import build_core

pytestmark = pytest.mark.asyncio


async def test_a_dial_that_fails_leaves_no_task_behind(free: FreePorts) -> None:
    connection = WorkerConnection(
        Listed(free.address(), Phase.DECODE),
        Relay(build_core(RouterConfig())),
        silence_seconds=9.0,
    )
    before = asyncio.all_tasks()
    dialling = asyncio.create_task(connection.run())
    await asyncio.wait_for(connection.tried.wait(), SECONDS)
    dialling.cancel()
    await asyncio.wait({dialling}, timeout=SECONDS)
    left = asyncio.all_tasks() - before
    if left:
        await asyncio.wait(left, timeout=SECONDS)
    assert "Connection refused" in connection.trouble
    assert not [task for task in left if not task.done()]
