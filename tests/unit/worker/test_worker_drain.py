"""A worker that shuts down waits for parked KV as it waits for legs, and no longer than it may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_harness import Bench

from tandem.engine.base import EngineFigures
from tandem.metrics import DrainMetrics
from tandem.text.tokenizer import Tokenizer
from tandem.worker import drain as draining
from tandem.worker.drain import drain

SECONDS = 60.0


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "_LOOK_SECONDS", 0.0)


class Parked:
    """An engine whose KV is fetched after so many looks at it."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def figures(self) -> EngineFigures:
        self.left -= 1
        return EngineFigures(parked=int(self.left >= 0))


async def drained(tokenizer: Tokenizer, parked: Parked, engine: Any, seconds: float) -> None:
    async with asyncio.timeout(SECONDS):
        await drain(
            Bench(tokenizer, phase="prefill").shell,
            engine,
            seconds=seconds,
            figures=parked.figures,
            measured=DrainMetrics("worker"),
        )


async def test_it_ends_once_all_parked_kv_was_fetched(tokenizer: Tokenizer) -> None:
    parked = Parked(5)
    await drained(tokenizer, parked, asyncio.get_running_loop().create_future(), 1000.0)
    assert parked.left < 0


async def test_it_ends_with_its_time_whatever_is_parked(tokenizer: Tokenizer) -> None:
    parked = Parked(10**9)
    await drained(tokenizer, parked, asyncio.get_running_loop().create_future(), 0.01)
    assert parked.left > 0


async def test_it_ends_with_its_engine(tokenizer: Tokenizer) -> None:
    parked, engine = Parked(10**9), asyncio.get_running_loop().create_future()
    engine.set_result(None)
    await drained(tokenizer, parked, engine, 1000.0)
    assert parked.left > 0
