"""What starts an executor of each kind in front of a router that answers by script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import fake_router
import pytest
from both import Either, Start, running
from fake_router import FakeRouter, Script

from tandem_executor import ExecutorConfig


@pytest.fixture(params=["threads", "asyncio"])
async def start(request: pytest.FixtureRequest) -> AsyncIterator[Start]:
    """Starts a router and an executor: `router, executor = await start(script, setting=value)`.
    `before`: further addresses, with a comma after each.
    """
    async with AsyncExitStack() as stack:

        async def go(
            script: Script, *, fleet: Any = None, before: str = "", **settings: Any
        ) -> tuple[FakeRouter, Either]:
            served = fleet or fake_router.fleet(model="tandem-tiny", tokenizer_sha256="any")
            router = await stack.enter_async_context(fake_router.running(script, served))
            config = ExecutorConfig(**settings)
            executor = running(request.param, before + router.address, config)
            return router, await stack.enter_async_context(executor)

        yield go
