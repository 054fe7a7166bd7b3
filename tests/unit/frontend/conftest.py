"""A frontend served in this process, in front of a router that answers by script."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fake_router
from harness import Harness, Start, serving


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """TLS is the event loop's own work, so it is tested on the one that frontends run."""
    if item.path.name == "test_frontend_https.py":
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def start(model_path: Path) -> AsyncIterator[Start]:
    """Starts frontends: `await start(script, setting=value)`. Each is asserted to end up idle."""
    async with AsyncExitStack() as stack:

        async def go(
            script: fake_router.Script, *, trust: ssl.SSLContext | None = None, **settings: Any
        ) -> Harness:
            serves = serving(model_path, script, settings, trust=trust)
            return await stack.enter_async_context(serves)

        yield go
