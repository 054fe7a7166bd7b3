"""A node that follows: how long it lives, and what it says to its machine. Over a scripted engine;
tests/contract/test_worker_nodes.py has the real one.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tandem.engine import factory
from tandem.engine.base import Role
from tandem.errors import ConfigError, EngineError
from tandem.free_ports import FreePorts
from tandem.logits.registry import Registry
from tandem.worker import follower, startup
from tandem.worker.config import WorkerConfig
from tandem.worker.follower import Follower

PATIENCE = 60.0


class ScriptedFollower:
    """Ranks whose leader is the test."""

    def __init__(self) -> None:
        self.may_start = asyncio.Event()
        self.starting = asyncio.Event()
        self.waited_for = asyncio.Event()
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closing = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self.closing.is_set()

    async def start(self) -> int:
        self.starting.set()
        await self.may_start.wait()
        return 4

    async def ended(self) -> None:
        self.waited_for.set()
        await self.outcome

    async def close(self) -> None:
        self.closing.set()


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedFollower:
    scripted = ScriptedFollower()
    monkeypatch.setattr(factory, "follow", lambda *_: scripted)
    return scripted


@asynccontextmanager
async def following(
    engine: ScriptedFollower, model_path: Path, *, loaded: bool = True, **changes: Any
) -> AsyncIterator[tuple[asyncio.Task[None], asyncio.Event, str]]:
    """A follower, its stop, and the address of its probes; it runs, or loads still."""
    with ExitStack() as held:
        port = FreePorts(held).port()
        config = WorkerConfig(
            model_path=model_path,
            engine="sglang",
            nodes=2,
            node_rank=1,
            leader="10.0.0.1:7120",
            metrics_listen=f"127.0.0.1:{port}",
            **changes,
        )
        stop = asyncio.Event()
        if loaded:
            engine.may_start.set()
        task = asyncio.get_running_loop().create_task(Follower("decode", config).run(stop))
        async with asyncio.timeout(PATIENCE):
            await (engine.waited_for if loaded else engine.starting).wait()
            yield task, stop, f"http://127.0.0.1:{port}"
        await asyncio.wait([task])


async def _get(url: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    return await asyncio.to_thread(ask)


async def test_it_answers_probes_and_serves_nothing_else(
    engine: ScriptedFollower, model_path: Path
) -> None:
    async with following(engine, model_path) as (_, stop, address):
        assert (await _get(f"{address}/live"))[0] == 200
        assert (await _get(f"{address}/ready"))[0] == 200
        status, figures = await _get(f"{address}/metrics")
        assert status == 200
        assert "tandem_worker_ready" not in figures, "it would be counted as a worker"
        stop.set()
        engine.outcome.set_result(None)


@pytest.mark.promise("S5-503")
async def test_while_its_ranks_load_it_lives_and_is_not_ready(
    engine: ScriptedFollower, model_path: Path
) -> None:
    async with following(engine, model_path, loaded=False) as (task, _, address):
        probes = [(await _get(f"{address}/{each}"))[0] for each in ("live", "started", "ready")]
        assert probes == [200, 503, 503]
        _, figures = await _get(f"{address}/metrics")
        assert 'tandem_worker_starting{phase="decode"} 1.0' in figures
        engine.may_start.set()
        await engine.waited_for.wait()
        probes = [(await _get(f"{address}/{each}"))[0] for each in ("live", "started", "ready")]
        assert probes == [200, 200, 200]
        engine.outcome.set_result(None)
        task.cancel()


async def test_when_its_leader_has_ended_it_frees_its_share_and_waits_for_sigterm(
    engine: ScriptedFollower, model_path: Path
) -> None:
    async with following(engine, model_path) as (task, stop, address):
        engine.outcome.set_result(None)
        await engine.closing.wait()
        assert (await _get(f"{address}/ready"))[0] == 503
        assert (await _get(f"{address}/live"))[0] == 200
        assert not task.done()
        stop.set()
        await task


async def test_it_does_not_wait_for_sigterm_for_ever(
    engine: ScriptedFollower, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "LINGER_SECONDS", 0.05)
    async with following(engine, model_path) as (task, _, _):
        engine.outcome.set_result(None)
        await task
    assert engine.closed


async def test_a_rank_that_dies_ends_it_with_an_error(
    engine: ScriptedFollower, model_path: Path
) -> None:
    async with following(engine, model_path) as (task, _, _):
        engine.outcome.set_exception(EngineError("a rank ended"))
        with pytest.raises(EngineError, match="a rank ended"):
            await task
    assert engine.closed


async def test_after_sigterm_it_lives_on_until_its_leader_has_drained(
    engine: ScriptedFollower, model_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with following(engine, model_path) as (task, stop, address):
        stop.set()
        assert (await _get(f"{address}/live"))[0] == 200  # by the loop, after it has seen `stop`
        assert "draining: waiting for the leader" in caplog.messages
        assert not task.done()
        assert not engine.closed
        engine.outcome.set_result(None)
        await task
    assert "the leader has closed its engine" in caplog.messages


async def test_it_waits_no_longer_than_its_leader_may_drain(
    engine: ScriptedFollower,
    model_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(follower, "LEADER_CLOSE_SECONDS", 0.05)
    async with following(engine, model_path, drain_seconds=0.05) as (task, stop, _):
        stop.set()
        await task
    assert engine.closed
    assert "the leader outlived its drain time" in caplog.messages


async def test_sigterm_before_the_model_is_loaded_ends_it_at_once(
    engine: ScriptedFollower, model_path: Path
) -> None:
    async with following(engine, model_path, loaded=False) as (task, stop, _):
        stop.set()
        await task
    assert engine.closed
    assert not engine.waited_for.is_set()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nodes": 2}, "several nodes need leader, as host:port"),
        ({"nodes": 2, "leader": "10.0.0.1"}, "several nodes need leader, as host:port"),
        ({"nodes": 2, "leader": "a:1", "node_rank": 2}, "node_rank must be from 0 to below nodes"),
        ({"node_rank": -1}, "node_rank must be from 0 to below nodes"),
        ({"nodes": 0}, "nodes must be at least 1, not 0"),
    ],
)
def test_a_node_without_its_place_is_refused(
    settings: dict[str, Any], words: str, model_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        WorkerConfig(model_path=model_path, **settings)


@pytest.mark.parametrize("make", [factory.create, factory.follow])
def test_an_engine_that_knows_one_node_refuses_more(make: Any, model_path: Path) -> None:
    config = WorkerConfig(model_path=model_path, engine="sim", nodes=2, leader="a:1")
    settings = startup.engine_settings("decode", config, Registry.builtin())
    with pytest.raises(ConfigError, match="engine 'sim' computes on one node"):
        make("sim", Role.DECODE, settings)
