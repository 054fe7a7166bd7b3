"""Processes of the hook pool that die, hang, flood memory or talk nonsense."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hook_rulings import WAIT_SECONDS, Rulings, pooled, settings, until, work

from tandem.errors import HookError
from tandem.hooks.runner.processes.pool import HookPool

LOST = "the process that ran the output hooks was lost"
QUICK = {"timeout_ms": 100}
SLOW = {"timeout_ms": 200}


@asynccontextmanager
async def _pool(
    name: str,
    *,
    workers: int = 2,
    memory_mb: int = 0,
    entry: dict[str, Any] | None = None,
    **limits: float,
) -> AsyncIterator[tuple[HookPool, Rulings]]:
    given = settings(name, workers=workers, memory_mb=memory_mb, **(entry or {}))
    async with pooled(given, **limits) as both:
        yield both


async def _pid_of(rulings: Rulings, request_id: int) -> int:
    (ruling,) = await rulings.ask([work(request_id, "")])
    assert ruling.piece is not None
    return int(ruling.piece.text)


@pytest.mark.promise("S0-032", "S6-148")
async def test_a_killed_process_fails_its_requests_closed_others_finish_new_ones_are_served() -> (
    None
):
    async with _pool("Pid") as (pool, rulings):
        rulings.open(1, 2)
        rulings.open(3, 4, group="n")
        rulings.open(7, 8, group="m")
        lost, kept = await _pid_of(rulings, 1), await _pid_of(rulings, 2)
        await rulings.ask([work(1, ""), work(2, "")])
        (one,) = await rulings.ask([work(7, "", final=True)])
        assert one.piece is not None
        assert int(one.piece.text) == lost, "8, its sibling, comes late"
        assert await _pid_of(rulings, 3) == lost
        os.kill(lost, signal.SIGSTOP)  # so that Works are certainly outstanding
        rulings.hooks.submit([work(1, "a", 1), work(2, "b", 2), work(1, "c", 3, final=True)])
        os.kill(lost, signal.SIGKILL)
        before = len(rulings.all)
        await rulings.until(before + 3)
        failed = [ruling for ruling in rulings.all[before:] if ruling.request_id == 1]
        assert [(ruling.piece, str(ruling.error)) for ruling in failed] == [(None, LOST)] * 2
        assert [ruling.final for ruling in failed] == [False, True]

        rulings.open(5)
        assert await _pid_of(rulings, 5) == kept, "served by the other meanwhile"
        (answer,) = await rulings.ask([work(3, "had nothing outstanding")])
        assert (answer.piece, str(answer.error)) == (None, LOST)
        rulings.hooks.abort(4)
        await rulings.ask([work(2, "end", final=True)])
        assert rulings.texts(2) == [f"{kept} "] * 4
        assert await _pid_of(rulings, 8) != lost

        await until(lambda: pool.processes_up == 2)
        rulings.open(6)
        assert await _pid_of(rulings, 6) not in (lost, kept), "and by the replacement"
        assert pool.restarts == 1
        assert pool.open_sequences == 3


@pytest.mark.promise("S0-032")
async def test_a_process_that_ends_by_itself_is_replaced_too() -> None:
    async with _pool("Obeying", workers=1) as (pool, rulings):
        rulings.open(1, 2)
        one, two = await rulings.ask([work(1, "exit"), work(2, "a")])
        assert str(one.error) == str(two.error) == LOST
        await until(lambda: pool.restarts == 1)
        rulings.open(3)
        await rulings.ask([work(3, "a")])  # sent while it starts
        assert rulings.texts(3) == ["a"]


@pytest.mark.promise("S0-032", "S6-172")
async def test_a_hook_that_hangs_where_nothing_reaches_it_is_killed_and_others_go_on() -> None:
    async with _pool("Obeying", entry=QUICK, margin=0.2) as (pool, rulings):
        rulings.open(1, 2, 3)
        await rulings.ask(work(number, "a") for number in (1, 2, 3))
        rulings.hooks.submit([work(1, "hang in C"), work(2, "b"), work(3, "b")])
        await rulings.until(6)
        assert rulings.texts(2) == ["a", "b"]
        for number in (1, 3):  # they shared the process
            assert str(rulings.of(number)[-1].error) == LOST
        await until(lambda: pool.processes_up == 2)


@pytest.mark.promise("S0-032")
async def test_a_hung_process_is_found_out_even_when_its_request_was_aborted() -> None:
    async with _pool("Obeying", workers=1, entry=QUICK, margin=0.2) as (pool, rulings):
        rulings.open(1, 2)
        rulings.hooks.abort(2)
        await rulings.ask([work(1, "a")])
        assert not any(link.owed for link in pool._keeper.processes), "an abort is answered too"
        rulings.hooks.submit([work(1, "hang in C")])
        rulings.hooks.abort(1)
        await until(lambda: pool.restarts == 1 and pool.processes_up == 1)
        assert len(rulings.all) == 1


@pytest.mark.promise("S6-172")
async def test_a_hook_that_hangs_in_python_fails_its_request_alone() -> None:
    async with _pool("Obeying", workers=1, entry=QUICK, margin=0.5) as (pool, rulings):
        rulings.open(1, 2)
        hung, fine = await rulings.ask([work(1, "hang"), work(2, "a")])
        assert str(hung.error) == "the output hook failed: the hook took longer than its timeout"
        assert fine.piece is not None
        assert pool.restarts == 0


async def test_many_slow_hooks_in_one_step_are_not_taken_for_a_hung_process() -> None:
    async with _pool("Obeying", workers=1, entry={"timeout_ms": 600}, margin=0.1) as (
        pool,
        rulings,
    ):
        numbers = range(23)  # 23 * 0.15 s; nothing for 2.5 s would be too long
        rulings.open(*numbers)
        await rulings.ask(work(number, "slow") for number in numbers)
        assert all(rulings.texts(number) == ["slow"] for number in numbers)
        assert len(rulings.deliveries) > 1
        assert pool.restarts == 0


async def test_an_async_hook_that_cannot_be_cancelled_costs_its_request_alone() -> None:
    async with _pool("AsyncObeying", workers=1, entry=QUICK, margin=3, close=0.5) as (
        pool,
        rulings,
    ):
        rulings.open(1, 2)
        rulings.hooks.submit([work(1, "await stubbornly"), work(2, "a")])
        await rulings.until(2)
        assert "ignores its timeout" in str(rulings.of(1)[0].error)
        await rulings.ask([work(2, "b")])
        assert rulings.texts(2) == ["a", "b"]
        assert pool.restarts == 0


@pytest.mark.promise("S6-173")
async def test_a_process_that_needs_more_memory_than_it_may_is_replaced() -> None:
    patient = {"timeout_ms": 20_000}
    async with _pool("Memory", workers=1, memory_mb=160, entry=patient) as (pool, rulings):
        rulings.open(1, 2)
        await rulings.ask(work(number, "a") for number in (1, 2))
        eaten, sharing = await rulings.ask([work(1, "eat"), work(2, "b")])
        assert str(eaten.error) == "the output hook failed: MemoryError"
        assert sharing.piece == work(2, "b").piece
        await until(lambda: pool.restarts == 1 and pool.processes_up == 1)
        (later,) = await rulings.ask([work(2, "c")])
        assert str(later.error) == LOST


@pytest.mark.promise("S6-173")
async def test_a_process_that_says_nonsense_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async with _pool("Babbling", workers=1) as (pool, rulings):
        rulings.open(1)
        (ruling,) = await rulings.ask([work(1, "babble")])
        assert str(ruling.error) == LOST
        await until(lambda: pool.restarts == 1 and pool.processes_up == 1)
    reasons = [str(getattr(record, "reason", "")) for record in caplog.records]
    assert any(reason.startswith("the process broke its protocol") for reason in reasons)


@pytest.mark.promise("S6-148")
async def test_while_no_process_is_up_work_fails_closed_at_once_and_a_crash_loop_is_slow(
    tmp_path: Path,
) -> None:
    """The hook can be built once, and never again."""
    mark = tmp_path / "built"
    entry = {"config": {"mark": str(mark)}}
    async with _pool("BuiltOnce", workers=1, entry=entry, backoff=0.6) as (pool, rulings):
        rulings.open(1, 2)
        began = time.monotonic()
        await rulings.ask([work(1, "exit")])
        await until(lambda: pool.restarts == 2)
        assert time.monotonic() - began > 0.6
        await until(lambda: not pool._keeper.usable())
        (ruling,) = await rulings.ask([work(2, "a")])
        assert isinstance(ruling.error, HookError)
        assert (pool.processes_up, pool.open_sequences) == (0, 0)
        mark.unlink()
        await until(lambda: pool.processes_up == 1)
        rulings.open(3)
        await rulings.ask([work(3, "a")])
        assert rulings.texts(3) == ["a"]


async def test_a_process_that_does_not_read_counts_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.pool.kept.MAX_UNSENT_BYTES", 100_000)
    async with _pool("Pid", workers=1) as (pool, rulings):
        rulings.open(1)
        os.kill(await _pid_of(rulings, 1), signal.SIGSTOP)
        sent = 1
        async with asyncio.timeout(WAIT_SECONDS):
            while pool.outstanding or sent < 3:
                rulings.hooks.submit([work(1, "x" * 50_000)])
                sent += 1
                assert sent < 100
                await asyncio.sleep(0)
        await rulings.until(sent)
        assert all(ruling.error is not None for ruling in rulings.all[1:])
