"""How SGLang's ranks on a node that follows are seen to end. Over scripted processes;
tests/contract/test_worker_nodes.py has real ones.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
from sglang_settings import engine_settings

from tandem.engine.base import Nodes, Role
from tandem.errors import EngineError
from tandem_sglang import SglangFollower, setup

PATIENCE = 60.0


class Rank:
    """A scheduler's process as its parent sees it."""

    def __init__(self) -> None:
        self.sentinel, self._held = os.pipe()
        self.exitcode: int | None = None

    def end(self, code: int) -> None:
        self.exitcode = code
        os.close(self._held)


class ScriptedThread:
    """A start that succeeds at once with two ranks."""

    def __init__(self) -> None:
        self.ranks = (Rank(), Rank())
        self.stopped = False

    @property
    def schedulers(self) -> tuple[Rank, Rank]:
        return self.ranks

    async def start(self) -> ScriptedThread:
        return self

    def failed(self) -> str:
        return "scheduler TP1 failed"

    async def stop(self) -> None:
        self.stopped = True


@pytest.fixture
async def follower(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[SglangFollower, ScriptedThread]]:
    thread = ScriptedThread()
    monkeypatch.setattr(setup.Setup, "thread", lambda *_: (thread, None))
    made = SglangFollower(
        Role.DECODE,
        engine_settings({"tensor_parallel": 4}, nodes=Nodes(count=2, rank=1, leader="127.0.0.1:1")),
    )
    async with asyncio.timeout(PATIENCE):
        assert await made.start() == 2
        yield made, thread
        await made.close()
    assert thread.stopped
    for rank in thread.ranks:
        os.close(rank.sentinel)


Following = tuple[SglangFollower, ScriptedThread]


async def test_ranks_that_the_leader_dismisses_are_an_orderly_end(follower: Following) -> None:
    engine, thread = follower
    ended = asyncio.ensure_future(engine.ended())
    thread.ranks[0].end(0)
    thread.ranks[1].end(0)
    await ended


async def test_a_rank_that_is_killed_is_a_failure(follower: Following) -> None:
    engine, thread = follower
    thread.ranks[1].end(-signal.SIGKILL)
    with pytest.raises(EngineError, match="a rank here or on another node"):
        await engine.ended()
    thread.ranks[0].end(0)


@pytest.mark.parametrize("exits", [True, False])
async def test_a_rank_that_reports_a_failure_has_failed_whatever_its_status(
    follower: Following, exits: bool
) -> None:
    """SGLang's scheduler reports an exception by SIGQUIT, and exits with 0 or stays."""
    engine, thread = follower
    if exits:
        thread.ranks[0].end(0)
    os.kill(os.getpid(), signal.SIGQUIT)
    with pytest.raises(EngineError, match="SGLang failed: scheduler TP1 failed"):
        await engine.ended()
