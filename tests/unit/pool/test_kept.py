"""When processes that are kept running are replaced. What loses them is tried with those of hooks
(tests/unit/hooks/test_hook_pool_faults.py) and of a divided worker (tests/unit/worker).
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from tandem.errors import StartError
from tandem.pool.kept import Keeper, KeepLimits, KeptProcess

WAIT_SECONDS = 60.0


class Process(KeptProcess):
    """One that is none."""

    def __init__(self, place: int, fails: bool = False) -> None:
        super().__init__(f"process {place}", max_message_bytes=100)
        self.fails = fails
        self.begun = asyncio.Event()

    async def begin(self) -> None:
        self.begun.set()
        if self.fails:
            self.lose("it cannot begin")
            raise StartError("it cannot begin")
        self.has_begun()


async def _pauses(caplog: pytest.LogCaptureFixture, limits: KeepLimits, count: int) -> list[float]:
    """Before so many replacements of the only process, each of which is lost at once."""
    keeper = Keeper(1, Process, limits)
    await keeper.start()
    async with asyncio.timeout(WAIT_SECONDS):
        for _ in range(count):
            process = keeper.processes[0]
            await process.begun.wait()
            process.lose("it has ended")
            while keeper.processes[0] is process:  # noqa: ASYNC110
                await asyncio.sleep(0)
    await keeper.close()
    assert keeper.restarts == count
    return [getattr(each, "seconds", -1.0) for each in caplog.records if "replacing" in each.msg]


async def test_replacements_that_do_not_last_come_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = KeepLimits(backoff=0.001, max_backoff=0.003)
    assert await _pauses(caplog, limits, 5) == [0.0, 0.001, 0.002, 0.003, 0.003]


async def test_one_that_lasted_is_replaced_at_once(caplog: pytest.LogCaptureFixture) -> None:
    assert await _pauses(caplog, KeepLimits(stable=0.0), 3) == [0.0, 0.0, 0.0]


async def test_a_replacement_that_cannot_begin_is_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    fails = iter([False, True, True, False])
    keeper = Keeper(1, lambda place: Process(place, next(fails)), KeepLimits(backoff=0.001))
    await keeper.start()
    keeper.processes[0].lose("it has ended")
    async with asyncio.timeout(WAIT_SECONDS):
        while keeper.restarts < 3 or not keeper.processes[0].up:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert [each.getMessage() for each in caplog.records] == ["process 0 cannot be replaced"] * 2
    await keeper.close()


async def test_all_must_begin_for_the_start() -> None:
    keeper = Keeper(3, lambda place: Process(place, fails=place == 1), KeepLimits())
    with pytest.raises(StartError, match="it cannot begin"):
        await keeper.start()
    await keeper.close()
    assert all(each.lost for each in keeper.processes)


async def test_while_none_is_up_those_that_start_are_usable() -> None:
    keeper = Keeper(3, Process, KeepLimits())
    starting = keeper.processes = [Process(place) for place in range(3)]
    assert keeper.usable() == starting
    starting[0].lose("it has ended")
    assert keeper.usable() == starting[1:]
    starting[2].has_begun()
    assert keeper.usable() == starting[2:]
