"""A further process as the first one holds it, with real processes that do nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from token_process_target import run

from tandem.worker.process_link import (
    FurtherProcess,
    Join,
    Live,
    Lost,
    Refused,
    Scrape,
    Serving,
    UnansweredError,
)

pytestmark = pytest.mark.asyncio
PATIENCE = 60.0


@asynccontextmanager
async def started(word: str = "word") -> AsyncIterator[FurtherProcess]:
    process = await FurtherProcess.start(run, (word,))
    try:
        yield process
    finally:
        await process.kill()


async def test_it_answers_one_question_after_the_other() -> None:
    async with started("unwilling") as process:
        answers = await asyncio.gather(
            process.ask(Join(b"four"), seconds=PATIENCE),
            process.ask(Join(b""), seconds=PATIENCE),
            process.ask(Scrape(), seconds=PATIENCE),
        )
        assert answers == [Serving(4), Refused("unwilling"), "unwilling"]
        assert not await process.ended(0)


async def test_one_that_ends_is_seen_at_once_and_cannot_be_asked() -> None:
    async with started() as process:
        await process.ask(Scrape(), seconds=PATIENCE)
        os.kill(process.pid, signal.SIGKILL)
        assert await process.ended(PATIENCE)
        with pytest.raises(UnansweredError, match="it has ended"):
            await process.ask(Scrape(), seconds=PATIENCE)
        assert await process.kill() == -signal.SIGKILL


async def test_one_that_ends_over_a_question_is_lost() -> None:
    async with started() as process:
        with pytest.raises(UnansweredError, match="it has ended"):
            await process.ask(Lost("seven77"), seconds=PATIENCE)
        assert await process.ended(PATIENCE)
        assert await process.kill() == 7


async def test_one_that_hangs_is_found_out_and_killed() -> None:
    async with started("60") as process:
        await process.ask(Scrape(), seconds=PATIENCE)
        with pytest.raises(UnansweredError, match=r"it did not answer within 0\.2 s"):
            await process.ask(Live(), seconds=0.2)
        assert not await process.ended(0)
        assert await process.kill() == -signal.SIGKILL
        assert not psutil.pid_exists(process.pid)


async def test_an_answer_that_comes_too_late_is_nobody_s() -> None:
    async with started("0.5") as process:
        await process.ask(Scrape(), seconds=PATIENCE)
        with pytest.raises(UnansweredError):
            await process.ask(Live(), seconds=0.01)
        assert await process.ask(Scrape(), seconds=PATIENCE) == "0.5"
