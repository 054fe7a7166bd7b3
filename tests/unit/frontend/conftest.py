"""A frontend served in this process, in front of a router that answers by script."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fake_router
from harness import Harness, serving

Start = Callable[..., Awaitable[Harness]]


@pytest.fixture
async def start(model_path: Path) -> AsyncIterator[Start]:
    """Starts frontends: `await start(script, setting=value)`. Each is asserted to end up idle."""
    async with AsyncExitStack() as stack:

        async def go(script: fake_router.Script, **settings: Any) -> Harness:
            return await stack.enter_async_context(serving(model_path, script, settings))

        yield go
