"""What a worker holds once it has started is left to no garbage collector: going through all of it
would stop every stream of the process.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tandem_aggregated_worker.__main__ as aggregated
from tandem.worker import further, server
from tandem.worker.config import WorkerConfig
from tandem_decode_worker.rules import load_phase


class Lives:
    """A worker that starts, says how much is frozen whenever it is called, and ends."""

    def __init__(self, *, starts: bool = True) -> None:
        self.frozen: list[tuple[str, bool]] = []
        self._starts = starts

    async def start(self, stop: asyncio.Event) -> bool:
        self._note("start")
        return self._starts

    async def serve(self, stop: asyncio.Event) -> None:
        self._note("serve")

    async def close(self) -> None:
        self._note("close")

    def _note(self, when: str) -> None:
        self.frozen.append((when, gc.get_freeze_count() > 0))


FROZEN = [("start", False), ("serve", True), ("close", True)]


@pytest.fixture(autouse=True)
def _thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gc.unfreeze()
    monkeypatch.setattr("tandem.process.own_signals", lambda stop: None)
    yield
    gc.unfreeze()


@pytest.fixture
def config(model_path: Path) -> WorkerConfig:
    return WorkerConfig(model_path=model_path, engine="sim")


@pytest.mark.promise("S5-474")
async def test_a_worker_that_has_started_is_frozen_before_it_serves(config: WorkerConfig) -> None:
    lives = Lives()
    await server.live("decode", config, asyncio.Event(), lambda tracer: lives)
    assert lives.frozen == FROZEN


@pytest.mark.promise("S5-474")
async def test_a_worker_that_was_stopped_while_starting_is_not(config: WorkerConfig) -> None:
    lives = Lives(starts=False)
    await server.live("decode", config, asyncio.Event(), lambda tracer: lives)
    assert lives.frozen == [("start", False), ("close", False)]


@pytest.mark.promise("S5-474")
async def test_an_aggregated_worker_is_frozen_too(
    config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives()
    monkeypatch.setattr(aggregated, "AggregatedWorker", lambda config, tracer: lives)
    await aggregated._serve(config, asyncio.Event())
    assert lives.frozen == FROZEN


@pytest.mark.promise("S5-474")
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_so_is_the_process_of_a_phase(
    phase: Any, config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives()
    monkeypatch.setattr("tandem.process.run", partial(_run, config))
    make: Any = lambda *_: lives  # noqa: E731 - one of two lines
    assert server.main(phase, load_phase, [], make=make) == 0
    assert lives.frozen == FROZEN


@pytest.mark.promise("S5-474")
def test_so_is_each_further_process_of_a_worker(
    config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = Lives()

    async def answers(*_: Any) -> None:
        """Nobody asks."""

    monkeypatch.setattr("tandem.process.run_with", _run_with)
    monkeypatch.setattr(further.Further, "make", lambda self, tracer: lives)
    monkeypatch.setattr(further.Further, "answer", answers)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert further.run(theirs, 2, "decode", config, load_phase) == 0
    assert lives.frozen == FROZEN


def _run(config: WorkerConfig, component: str, kind: Any, serve: Any, *_: Any) -> int:
    return _run_with(component, config, serve)


def _run_with(component: str, config: WorkerConfig, serve: Any, **_: Any) -> int:
    asyncio.run(serve(config, asyncio.Event()))
    return 0
