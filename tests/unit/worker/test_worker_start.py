"""What a worker says while its engine loads: that it lives, that it starts, and that it takes
nothing yet. A load may take half an hour.
"""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import ScriptedEngine

from tandem import process
from tandem.cli.client import Client
from tandem.engine import factory
from tandem.engine.base import EngineDescription
from tandem.errors import StartError
from tandem.worker.config import WorkerConfig
from tandem.worker.server import WorkerServer
from tandem_aggregated_worker.worker import AggregatedWorker
from tandem_decode_worker.rules import load_phase

PATIENCE = 30.0
KINDS = ("one phase", "aggregated")


class SlowEngine(ScriptedEngine):
    """Loads until the test lets it be."""

    def __init__(self) -> None:
        super().__init__()
        self.loading = asyncio.Event()
        self.loaded = asyncio.Event()
        self.fault = ""

    async def start(self) -> EngineDescription:
        self.loading.set()
        await self.loaded.wait()
        if self.fault:
            raise StartError(self.fault)
        return await super().start()


class Loading:
    """A worker whose engine loads."""

    def __init__(self, worker: Any, engine: SlowEngine, starting: asyncio.Task[bool]) -> None:
        self.worker = worker
        self.engine = engine
        self.starting = starting

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.worker.metrics_port}"

    async def probe(self, path: str) -> int:
        return await asyncio.to_thread(Client(self.address, timeout_seconds=PATIENCE).status, path)

    async def metrics(self) -> str:
        return await asyncio.to_thread(scrape, self.address)

    async def probes(self) -> tuple[int, int, int]:
        live, started, ready = [
            await self.probe(f"/{each}") for each in ("live", "started", "ready")
        ]
        return live, started, ready


def scrape(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture
def loading(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    @asynccontextmanager
    async def load(kind: str) -> AsyncIterator[Loading]:
        engine, stop = SlowEngine(), asyncio.Event()
        monkeypatch.setattr(process, "own_signals", lambda stop: None)
        config = WorkerConfig(
            model_path=model_path, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", engine="sim"
        )
        worker: Any
        if kind == "aggregated":
            worker = AggregatedWorker(config, create=lambda *arguments: engine)
        else:
            monkeypatch.setattr(factory, "create", lambda *arguments: engine)
            worker = WorkerServer("decode", config, load_phase)
        starting = asyncio.get_running_loop().create_task(worker.start(stop))
        try:
            async with asyncio.timeout(PATIENCE):
                await engine.loading.wait()
            yield Loading(worker, engine, starting)
        finally:
            stop.set()
            engine.loaded.set()
            await asyncio.wait({starting}, timeout=PATIENCE)
            await worker.close()

    return load


@pytest.mark.promise("S5-503")
@pytest.mark.parametrize("kind", KINDS)
async def test_while_the_engine_loads_a_worker_lives_and_is_not_ready(
    loading: Callable[..., Any], kind: str
) -> None:
    async with loading(kind) as worker:
        assert await worker.probes() == (200, 503, 503)
        said = await worker.metrics()
        assert 'tandem_worker_starting{phase="decode"} 1.0' in said
        assert 'tandem_worker_ready{phase="decode"} 0.0' in said
        assert "tandem_worker_served_model_info{" in said
        assert "process_start_time_seconds" in said
        worker.engine.loaded.set()
        assert await worker.starting
        assert await worker.probes() == (200, 200, 200)
        said = await worker.metrics()
        assert 'tandem_worker_starting{phase="decode"} 0.0' in said
        assert 'tandem_worker_ready{phase="decode"} 1.0' in said
        assert 'tandem_worker_open_legs{phase="decode"} 0.0' in said


@pytest.mark.promise("S5-503")
async def test_a_load_that_keeps_the_loop_busy_is_scraped(loading: Callable[..., Any]) -> None:
    """Imports and graphs hold the interpreter for seconds: no scrape may wait for the loop."""
    async with loading("one phase") as worker:
        scraped: list[str] = []
        asking = threading.Thread(target=lambda: scraped.append(scrape(worker.address)))
        asking.start()
        end = time.monotonic() + PATIENCE
        while asking.is_alive() and time.monotonic() < end:  # the loop stands still
            asking.join(0.01)
        assert scraped
        assert 'tandem_worker_starting{phase="decode"} 1.0' in scraped[0]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_load_that_fails_ends_the_worker_with_its_reason(
    loading: Callable[..., Any], kind: str
) -> None:
    async with loading(kind) as worker:
        worker.engine.fault = "no such weights"
        worker.engine.loaded.set()
        with pytest.raises(StartError, match="no such weights"):
            await worker.starting
