"""A frontend served in this process, in front of a router that answers by script."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
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
from simulated.loop import VirtualLoop

ROOT = Path(__file__).resolve().parents[3]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """TLS is the event loop's own work, so it is tested on the one that frontends run. Long silence
    is tested in virtual time.
    """
    if item.path.name == "test_frontend_https.py":
        return {"uvloop": uvloop.new_event_loop}
    if item.path.name == "test_frontend_keep_alive.py":
        return {"virtual": lambda: VirtualLoop(lambda: None)}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """nginx, haproxy and envoy: those of the machine, or of Debian's packages and Envoy's wheel."""
    folder = set_up("set_up_proxies.sh")
    found = {name: folder / name for name in ("nginx", "haproxy")}
    return {**found, "envoy": set_up("set_up_envoy.sh")}


def set_up(script: str) -> Path:
    done = subprocess.run(
        [ROOT / "scripts" / script], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture
async def start(model_path: Path) -> AsyncIterator[Start]:
    """Starts frontends: `await start(script, setting=value)`. Each is asserted to end up idle."""
    async with AsyncExitStack() as stack:

        async def go(
            script: fake_router.Script,
            *,
            trust: ssl.SSLContext | None = None,
            ready: bool = True,
            **settings: Any,
        ) -> Harness:
            serves = serving(model_path, script, settings, trust=trust, ready=ready)
            return await stack.enter_async_context(serves)

        yield go
