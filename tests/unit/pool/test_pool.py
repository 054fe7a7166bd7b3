"""Whatever an order does to its process costs that order alone, in bounded time."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from faulty_program import FaultyBoot, Order, encoder

from tandem.errors import QueueFullError
from tandem.pool import process as pool_process
from tandem.pool.pool import GarbledError, Pool, PoolLimits, UnloadedError
from tandem.pool.process import ChildProcess, LostError
from tandem.pool.turns import PlaceInLine

HERE = Path(__file__).parent
ENVIRONMENT = {"PYTHONPATH": str(HERE)}
WAIT_SECONDS = 60.0
LIMITS = PoolLimits(
    seconds=WAIT_SECONDS,
    start_seconds=WAIT_SECONDS,
    message_bytes=1000,
    most_waiting=8,
    full="full",
    memory_bytes=64 * 2**20,
)
FAULTS = ["die", "exit", "garbage", "flood", "two answers", "eat", "close", "fork"]
BOOT = FaultyBoot(import_path=[])
Words = list[str]


@asynccontextmanager
async def open_pool(processes: int = 1, **limits: Any) -> AsyncIterator[Pool[Words]]:
    """Of which nothing is left."""
    pool = Pool(
        "faulty_program",
        encoder.encode,
        msgspec.msgpack.Decoder(Words),
        replace(LIMITS, **limits),
        processes=processes,
        environment=ENVIRONMENT,
    )
    before = len(os.listdir("/proc/self/fd"))
    try:
        async with asyncio.timeout(2 * WAIT_SECONDS):
            yield pool
    finally:
        await asyncio.wait_for(pool.close(), WAIT_SECONDS)
        assert not running()
        await asyncio.sleep(0)  # transports close their sockets in the next turn
        assert len(os.listdir("/proc/self/fd")) == before


def running() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "faulty_program" in child.cmdline()
    ]


async def ask(pool: Pool[Words], *words: str, boot: FaultyBoot = BOOT, key: str = "") -> Words:
    async with pool.process(pool.turns.line_up(key)) as process:
        return await process.ask(Order(list(words)), boot)


async def pid(pool: Pool[Words]) -> int:
    return int((await ask(pool, "pid"))[0])


async def busy(pool: Pool[Words], folder: Path) -> tuple[asyncio.Task[Words], Callable[[], None]]:
    """An order that a process has now, and what lets it be answered."""
    began, end = str(folder / "began"), str(folder / "end")
    for name in (began, end):
        os.mkfifo(name)
    task = asyncio.create_task(ask(pool, "wait", began, end))
    await asyncio.to_thread(Path(began).read_bytes)
    return task, lambda: os.close(os.open(end, os.O_WRONLY))


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_costs_its_own_order_and_its_process_alone(fault: str) -> None:
    async with open_pool(2) as pool:
        first = await pid(pool)
        if fault == "two answers":  # the second is none of the next order's
            assert await ask(pool, fault) == []
        else:
            with pytest.raises(LostError) as lost:
                await ask(pool, fault)
            assert isinstance(lost.value, GarbledError) == (fault == "garbage")
            assert not psutil.pid_exists(first)
        assert await pid(pool) != first


async def test_a_process_that_hangs_is_killed_once_its_orders_time_is_over() -> None:
    async with open_pool(seconds=0.1) as pool:
        with pytest.raises(LostError, match=r"does not answer within 0\.1 s"):
            await ask(pool, "hang")
        assert not running()


async def test_others_are_answered_while_a_process_is_lost_and_replaced(tmp_path: Path) -> None:
    async with open_pool(2) as pool:
        other, let_go = await busy(pool, tmp_path)
        with pytest.raises(LostError):
            await ask(pool, "die")
        await pid(pool)
        assert not other.done()
        let_go()
        assert await other == []


async def test_a_reply_of_the_longest_length_is_taken_and_a_longer_one_is_not() -> None:
    async with open_pool() as pool:
        size = 1000 - len(encoder.encode(["x" * 900])) + 900
        assert await ask(pool, "long", str(size)) == ["x" * size]
        with pytest.raises(LostError, match="a message of 1001 bytes"):
            await ask(pool, "long", str(size + 1))


async def test_memory_is_counted_for_each_order_and_given_time_anew() -> None:
    async with open_pool(memory_bytes=2**30) as pool:
        with pytest.raises(LostError, match="it has ended"):  # and not: it does not answer
            await ask(pool, "eat")
        assert await pid(pool) == await pid(pool)


async def test_a_process_that_was_lost_while_it_had_nothing_to_do_fails_no_order() -> None:
    async with open_pool() as pool:
        first = await pid(pool)
        ended = os.pidfd_open(first)
        os.kill(first, signal.SIGKILL)
        await asyncio.to_thread(select.select, [ended], [], [], WAIT_SECONDS)
        os.close(ended)
        assert await pid(pool) != first


async def test_an_order_that_nobody_waits_for_ends_with_its_process(tmp_path: Path) -> None:
    async with open_pool() as pool:
        first = await pid(pool)
        task, _ = await busy(pool, tmp_path)
        task.cancel()
        await asyncio.wait({task})
        assert not psutil.pid_exists(first)
        assert await pid(pool) != first


async def test_closing_ends_what_is_done_and_what_waits(tmp_path: Path) -> None:
    async with open_pool() as pool:
        task, _ = await busy(pool, tmp_path)
        waiting = asyncio.create_task(pid(pool))
        await asyncio.sleep(0)
        await pool.close()
        assert not running()
        for each in (task, waiting):
            with pytest.raises(LostError):
                await each


async def test_signals_to_the_parents_group_leave_its_processes_alone() -> None:
    async with open_pool() as pool:
        first = await pid(pool)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(first, number)
        assert await pid(pool) == first


def test_a_process_ends_with_its_parent_whatever_it_does(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "import test_pool as t\n"
        "async def main():\n"
        "    async with t.open_pool() as pool:\n"
        "        print(await t.pid(pool), flush=True)\n"
        "        await t.ask(pool, 'hang')\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT,
    )
    assert parent.stdout is not None
    process = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait(WAIT_SECONDS)
    parent.stdout.close()
    _, alive = psutil.wait_procs([process], WAIT_SECONDS)
    assert not alive


# --- starts and boots -----------------------------------------------------------------------------


async def test_a_process_is_told_each_boot_once_and_again_when_it_is_another() -> None:
    one, two = FaultyBoot(name="one", import_path=[]), FaultyBoot(name="two", import_path=[])
    newer = FaultyBoot(name="one", import_path=["more"])
    async with open_pool() as pool:
        for boot in (one, one, two, one, newer, newer):
            known = await ask(pool, "boots", boot=boot)
        assert known == ["one", "two", "one"]


@pytest.mark.parametrize(("fault", "says"), [("no such file", "no such file"), ("hang", "1 s")])
async def test_a_process_that_cannot_do_what_it_is_to_fails_its_order_alone(
    fault: str, says: str
) -> None:
    async with open_pool(start_seconds=1.0 if fault == "hang" else WAIT_SECONDS) as pool:
        with pytest.raises(UnloadedError, match=says):
            await ask(pool, "pid", boot=FaultyBoot(fault=fault, import_path=[]))
        assert not running()


async def test_an_order_that_cannot_travel_fails_alone() -> None:
    async with open_pool() as pool:
        with pytest.raises(UnicodeEncodeError):
            await ask(pool, "\ud800")
        assert await pid(pool)


@pytest.mark.parametrize("cancelled", [True, False])
async def test_nothing_is_left_of_a_start_that_is_given_up(
    monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """Whoever waits for the start gives up, or the pool is closed meanwhile, or both."""
    began, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    spawn = pool_process._spawn

    def slowly(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(WAIT_SECONDS)
        return spawn(*arguments)

    monkeypatch.setattr(pool_process, "_spawn", slowly)
    async with open_pool() as pool:
        starting = asyncio.create_task(pid(pool))
        await began.wait()
        if cancelled:
            starting.cancel()
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)  # the pool begins to close
        go_on.set()
        await asyncio.wait({starting, closing})
        assert starting.cancelled() or isinstance(starting.exception(), LostError)
        assert starting.cancelled() == cancelled


async def test_nothing_is_left_of_a_start_whose_socket_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OSError("no more files")

    async with open_pool() as pool:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_unix_connection", fail)
        with pytest.raises(UnloadedError, match="no more files"):
            await pid(pool)
        assert not running()


async def test_a_process_may_end_by_itself_and_is_killed_if_it_does_not() -> None:
    for hangs in (False, True):
        process = ChildProcess(max_message_bytes=1000)
        await process.start("faulty_program", ENVIRONMENT)
        if hangs:
            process.send(encoder.encode(Order(["hang"])))
        await process.close(1.0 if hangs else WAIT_SECONDS)
        assert process.exited.is_set()
        assert not running()


# --- whose turn it is -----------------------------------------------------------------------------


class Line:
    """Turns of a pool whose one process is taken until it is let go."""

    def __init__(self, pool: Pool[Words]) -> None:
        self._pool = pool
        self.go_on = asyncio.Semaphore(0)
        self.turns: list[PlaceInLine] = []
        self.served: list[str] = []

    async def _one(self, name: str) -> None:
        """The first letter of a name is its key's."""
        turn = self._pool.turns.line_up(name[0])
        self.turns.append(turn)
        async with self._pool.process(turn):
            self.served.append(name)
            await self.go_on.acquire()

    async def ask(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._one(name)) for name in names]
        await asyncio.sleep(0)
        return tasks

    async def finish(self, *tasks: asyncio.Task[None]) -> list[BaseException | None]:
        for _ in tasks:
            self.go_on.release()
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.promise("S6-185")
async def test_a_key_with_many_orders_waits_for_itself() -> None:
    async with open_pool() as pool:
        line = Line(pool)
        tasks = await line.ask("a1", "a2", "a3", "b1", "a4", "c1", "b2")
        assert pool.turns.waiting == 6
        await line.finish(*tasks)
        assert line.served == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


@pytest.mark.promise("S6-185")
async def test_a_key_with_few_orders_takes_the_place_of_one_with_many() -> None:
    async with open_pool(most_waiting=3) as pool:
        line = Line(pool)
        tasks = await line.ask("a1", "a2", "a3", "a4", "a5", "b1")
        refused = await line.finish(*tasks)
        assert [isinstance(each, QueueFullError) for each in refused] == [0, 0, 0, 1, 1, 0]
        assert line.served == ["a1", "a2", "b1", "a3"]


async def test_an_order_that_another_key_wants_too_comes_when_either_would() -> None:
    async with open_pool() as pool:
        line = Line(pool)
        tasks = await line.ask("a1", "a2", "a3", "b1")
        pool.turns.favour(line.turns[2], "c")
        await line.finish(*tasks)
        assert line.served == ["a1", "a2", "b1", "a3"]


@pytest.mark.promise("S6-185")
@pytest.mark.parametrize("late", [False, True])
async def test_who_goes_away_while_it_waits_takes_no_turn(late: bool) -> None:
    async with open_pool() as pool:
        line = Line(pool)
        tasks = await line.ask("a1", "b1", "c1")
        if late:  # in the very turn in which its own comes
            line.go_on.release()
            while not tasks[0].done():  # noqa: ASYNC110 - by turns of the loop
                await asyncio.sleep(0)
            assert line.served == ["a1"]
        tasks[1].cancel()
        await line.finish(*tasks)
        assert line.served == ["a1", "c1"]


@pytest.mark.promise("S6-185")
async def test_no_order_waits_for_ever() -> None:
    async with open_pool(wait_seconds=0.05) as pool:
        line = Line(pool)
        first, second = await line.ask("a1", "b1")
        with pytest.raises(QueueFullError):
            await second
        assert pool.turns.waiting == 0
        await line.finish(first)
