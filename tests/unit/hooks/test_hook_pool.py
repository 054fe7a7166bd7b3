"""The chain in processes of their own: what a worker sees of it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hook_rulings import WAIT_SECONDS, pool_processes, pooled, settings, until, work

from tandem.errors import LoadError
from tandem.hooks.audit.settings import AuditSettings
from tandem.hooks.contract import Phase
from tandem.hooks.counters import HOOK_VERDICTS
from tandem.hooks.deferred import Ruling
from tandem.hooks.runner.processes.pool import HookPool
from tandem.hooks.settings import HookEntry, HookSettings

PHASE: Phase = "decode"


def _diary(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.promise("S0-007")
async def test_a_pool_of_two_shows_what_the_chain_in_the_worker_shows() -> None:
    async with pooled(settings("Upper", workers=2)) as (pool, rulings):
        rulings.open(1, 2)
        works = [
            work(1, "grüß ", 1, 2),
            work(2, "", 7),
            work(1, "dich", 3, final=True),
            work(2, "b", 8, final=True),
        ]
        await rulings.ask(works)
        assert [ruling.piece for ruling in rulings.of(1)] == [
            work(1, "GRÜSS ", 1, 2).piece,
            work(1, "DICH", 3).piece,
        ]
        assert [ruling.piece for ruling in rulings.of(2)] == [
            work(2, "", 7).piece,
            work(2, "B", 8).piece,
        ]
        assert [ruling.final for ruling in rulings.of(2)] == [False, True]
        assert rulings.of(1)[-1].seconds > 0, "the last ruling says what the sequence cost"
        assert (pool.open_sequences, pool.outstanding) == (0, 0)


async def test_a_pool_s_audit_lines_name_the_sequence_and_its_key(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audited = msgspec.structs.replace(settings("Upper"), audit=AuditSettings(path=str(path)))
    async with pooled(msgspec.structs.replace(audited, workers=1)) as (_, rulings):
        rulings.open(1)
        await rulings.ask([work(1, "a", 1, final=True)])
    (line,) = _diary(path)
    assert (line["decision"], line["trace_id"], line["tenant"]) == ("rewrite", "trace 1", "key 1")


@pytest.mark.promise("S0-031")
async def test_all_chunks_of_a_request_reach_the_same_process_and_requests_are_spread() -> None:
    async with pooled(settings("Pid", workers=2)) as (_, rulings):
        rulings.open(1, 2, 3, group="n")
        rulings.open(*range(10, 21))
        for _ in range(4):
            await rulings.ask([work(1, ""), *(work(number, "") for number in range(10, 21))])
            await rulings.ask([work(2, ""), work(3, "")])
        processes = {number: set(rulings.texts(number)) for number in [1, 2, 3, *range(10, 21)]}
        assert all(len(seen) == 1 for seen in processes.values())
        assert processes[1] == processes[2] == processes[3]
        pids = [next(iter(seen)) for seen in processes.values()]
        assert sorted(pids.count(pid) for pid in set(pids)) == [6, 8]


@pytest.mark.promise("S0-001", "S0-005", "S0-021")
async def test_each_process_has_one_instance_and_requests_do_not_mix() -> None:
    async with pooled(settings("Counting", workers=2)) as (_, rulings):
        rulings.open(1, 2)
        rulings.open(3, 4, group="n")
        for _ in range(3):
            await rulings.ask([work(1, ""), work(3, ""), work(2, ""), work(4, "")])
        assert [str(text).split("/")[0] for text in rulings.texts(4)] == ["1", "2", "3"]
        last = [str(rulings.texts(number)[-1]).split("/") for number in (1, 2, 3, 4)]
        assert [seen for seen, _ in last] == ["3"] * 4
        assert max(int(calls) for _, calls in last) == 6, "an instance sees its own process's calls"


async def test_a_step_is_one_message_to_each_process_and_one_back() -> None:
    async with pooled(settings("Upper", workers=2)) as (_, rulings):
        rulings.open(*range(64))
        for step in range(3):
            await rulings.ask(work(number, f"t{step}", step) for number in range(64))
        assert [len(delivery) for delivery in rulings.deliveries] == [32] * 6


@pytest.mark.promise("S0-019", "S0-020")
async def test_a_hook_that_raises_or_answers_nonsense_fails_its_request_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with pooled(settings("Obeying", workers=1)) as (pool, rulings):
        rulings.open(1, 2, 3)
        await rulings.ask([work(1, "raise", 1), work(2, "nonsense", 2), work(3, "good", 3)])
        raised, nonsense, good = rulings.all
        assert str(raised.error) == "the output hook failed: RuntimeError"
        assert str(nonsense.error) == "the output hook failed: the hook answered int, not a verdict"
        assert (raised.piece, nonsense.piece) == (None, None)
        assert good.piece == work(3, "good", 3).piece
        await rulings.ask([work(3, "goes on", 4)])
        assert rulings.texts(3) == ["good", "goes on"]
        assert (pool.processes_up, pool.restarts, pool.open_sequences) == (1, 0, 1)
    logged = capfd.readouterr().err
    assert "decode_worker-hooks-0" in logged
    assert "RuntimeError at pooled_hooks.py:" in logged
    assert "secret words" not in logged


@pytest.mark.promise("S0-022")
async def test_however_a_sequence_ends_its_hook_is_told_once_and_then_asked_to_forget_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "diary"
    given = settings("Diary", workers=2, config={"path": str(path)})
    async with pooled(given) as (_, rulings):
        rulings.open(1, 2, 3, 4, 5, 6)
        rulings.open(11, 12, group="n")
        await rulings.ask(work(number, "a") for number in (1, 2, 3, 4, 11, 12))
        rulings.hooks.abort(1)  # between chunks
        rulings.hooks.abort(6)  # before the first
        rulings.hooks.abort(11)
        rulings.hooks.abort(99)  # unknown
        await rulings.ask([work(2, "b", final=True), work(3, "raise"), work(4, "stop")])
        rulings.hooks.submit([work(12, "never answered")])
        rulings.hooks.abort(12)
        await asyncio.wait_for(rulings.hooks.close(), WAIT_SECONDS)
    entries = _diary(path)
    closes = [entry["request_id"] for entry in entries if entry["what"] == "close"]
    assert sorted(closes) == [1, 2, 3, 4, 6, 11, 12]  # nothing was said of 5, not even its chunk
    finals = {
        entry["request_id"]: entry["aborted"] for entry in entries if entry.get("final") is True
    }
    assert finals == {1: True, 2: False, 3: True, 4: True, 6: True, 11: True, 12: True}
    lives = [entry["what"] for entry in entries if "request_id" not in entry]
    assert sorted(lives) == ["shutdown", "shutdown", "startup", "startup"]
    assert not rulings.of(12)[1:]


async def test_async_hooks_are_judged_at_once_in_their_process() -> None:
    async with pooled(settings("AsyncObeying", workers=1, timeout_ms=5000)) as (_, rulings):
        rulings.open(1, 2)
        rulings.hooks.submit([work(1, "await"), work(2, "a")])
        rulings.hooks.submit([work(2, "b"), work(1, "waits")])
        await rulings.until(2)
        assert rulings.texts(2) == ["a", "b"]
        assert rulings.texts(1) == []


async def test_the_processes_import_no_engine() -> None:
    async with pooled(settings("Modules", workers=1)) as (_, rulings):
        rulings.open(1)
        await rulings.ask([work(1, "")])
        modules = set(str(rulings.texts(1)[0]).split())
        assert "tandem.hooks.chain" in modules
        assert not modules & {"torch", "sglang", "numpy", "nixl", "tandem.worker", "tandem.engine"}


async def test_counts_of_all_processes_are_added_up() -> None:
    async with pooled(settings("Obeying", "Upper", workers=2)) as (pool, rulings):
        rulings.open(*range(8))
        await rulings.ask(work(number, "a") for number in range(8))
        await rulings.ask([work(0, "stop"), work(1, "raise"), work(2, "b", final=True)])
        await until(lambda: sum(pool.hooks[0].counters.verdicts.values()) == 11)
        assert pool.hooks[0].counters.sequences == 5
        await pool.close()
        first, second = pool.hooks
        assert (first.entry.name, second.entry.name) == ("Obeying-0", "Upper-1")
        assert first.counters.verdicts == dict.fromkeys(HOOK_VERDICTS, 0) | {
            "emit": 9,
            "terminate": 1,
            "error": 1,
        }
        assert second.counters.verdicts["rewrite"] == 9
        assert sum(first.counters.seconds.counts) >= 11
        assert first.counters.seconds.total > 0
        assert (first.counters.sequences, first.counters.held_tokens) == (0, 0)


@pytest.mark.promise("S0-002", "S0-003")
@pytest.mark.parametrize(
    ("path", "config", "words"),
    [
        ("no_such_module:Hook", {}, "there is no module 'no_such_module'"),
        ("pooled_hooks:Diary", {"path": "/no/such/folder"}, "its constructor raised"),
    ],
)
async def test_a_hook_that_cannot_be_loaded_stops_the_start(
    path: str, config: dict[str, Any], words: str
) -> None:
    chain = (HookEntry(path=path, name=path, config=config),)
    pool = HookPool(HookSettings(chain=chain, workers=1), phase=PHASE, model="m")
    with pytest.raises(LoadError, match=words):
        await asyncio.wait_for(pool.start(lambda _: None), WAIT_SECONDS)
    assert pool_processes() == []


async def test_a_start_that_is_given_up_leaves_no_process_behind() -> None:
    pool = HookPool(settings("Upper", workers=2), phase="decode", model="m")
    starting = asyncio.create_task(pool.start(lambda _: None))
    await until(lambda: bool(pool_processes()))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not pool_processes()


async def test_a_close_leaves_nothing_behind() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with pooled(settings("Upper", workers=1)):
        pass  # what a first start imports and opens for good
    before, threads = descriptors(), threading.active_count()
    async with pooled(settings("Upper", workers=2)) as (pool, rulings):
        rulings.open(*range(50))
        await rulings.ask(work(number, "a") for number in range(50))
        assert len(pool_processes()) == 2
        rulings.hooks.submit([work(number, "b") for number in range(20)])
    given: list[Ruling] = rulings.all[50:]
    assert given == [], "nothing is delivered once the close began"
    assert pool_processes() == []
    assert (descriptors(), threading.active_count()) == (before, threads)
    assert (pool.open_sequences, pool.outstanding, pool.processes_up) == (0, 0, 0)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
