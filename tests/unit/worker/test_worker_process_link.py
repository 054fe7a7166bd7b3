"""A further process as the first one holds it, with real processes that do nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from token_process_target import load_with_own_engine

from tandem.errors import StartError
from tandem.pool.process import LostError
from tandem.worker import process_link
from tandem.worker.config import WorkerConfig
from tandem.worker.process_link import FurtherProcess, Live, Lost, Stop

pytestmark = pytest.mark.asyncio
PATIENCE = 60.0


class Sharing:
    """Of an engine that is none."""

    def __init__(self, ticket: bytes) -> None:
        self._ticket = ticket

    def ticket(self, process: int) -> bytes:
        return self._ticket

    def left(self, process: int) -> None:
        """It had nothing open."""


def sharing(ticket: bytes) -> asyncio.Future[Any]:
    engine: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    engine.set_result(Sharing(ticket))
    return engine


@pytest.fixture(autouse=True)
def _target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "PROGRAM", "token_process_target")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@asynccontextmanager
async def started(word: str = "word", ticket: bytes = b"four") -> AsyncIterator[FurtherProcess]:
    process = FurtherProcess((2, word), sharing(ticket), lambda: False)
    try:
        await process.begin()
        yield process
    finally:
        await process.end()
        assert process.pid is not None
        assert not psutil.pid_exists(process.pid)


async def test_it_answers_one_question_after_the_other() -> None:
    async with started("0") as process:
        assert process.up
        answers = await asyncio.gather(
            process.scrape(), process.answer(Live(), PATIENCE), process.scrape()
        )
        assert answers == ["0", None, "0"]


async def test_one_that_refuses_says_why_and_is_ended() -> None:
    with pytest.raises(StartError, match="token process 2 did not start: unwilling"):
        async with started("unwilling", ticket=b""):
            pass


async def test_one_that_ends_is_seen_at_once_and_cannot_be_asked() -> None:
    async with started() as process:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait_exited(PATIENCE)
        await process.gone.wait()
        with pytest.raises(LostError, match="it has ended"):
            await process.answer(Live(), PATIENCE)
        assert (await process.scrape(), process.status) == ([], ", killed by signal 9")


async def test_one_that_ends_over_a_question_is_lost() -> None:
    """It ends by itself, some time after its stream."""
    async with started() as process:
        process.say(Lost("seven77"))
        with pytest.raises(LostError, match="it has ended"):
            await process.answer(Live(), PATIENCE)
        assert await process.wait_exited(PATIENCE)
        assert process.status == ", exit status 7"


async def test_one_that_hangs_is_found_out_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(process_link, "SILENCE_SECONDS", 0.2)
    async with started("60") as process:
        await asyncio.wait_for(process.gone.wait(), PATIENCE)
        assert process.lost == "it does not answer within 0.2 s"
        assert await process.wait_exited(PATIENCE)
        assert process.status == ", killed by signal 9"


async def test_an_answer_that_comes_too_late_is_nobody_s() -> None:
    async with started("0.5") as process:
        with pytest.raises(LostError):
            await process.answer(Live(), 0.01)
        process.say(Stop())
        assert await process.scrape() == "0.5"


@pytest.fixture
async def serve(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], FurtherProcess]]:
    """Real further processes, by the address at which each is to listen."""
    monkeypatch.setattr(process_link, "PROGRAM", "tandem.worker.further")
    processes: list[FurtherProcess] = []

    def make(listen: str) -> FurtherProcess:
        config = WorkerConfig(model_path=model_path, engine="sim", listen=listen)
        order = (2, "decode", config, load_with_own_engine)
        processes.append(FurtherProcess(order, sharing(b"ticket"), lambda: False))
        return processes[-1]

    yield make
    for each in processes:
        await each.end()


async def test_a_worker_serves_until_it_is_told_to_stop_and_ends_by_itself(
    serve: Callable[[str], FurtherProcess],
) -> None:
    process = serve("127.0.0.1:0")
    await process.begin()
    assert any(family.name == "tandem_worker_tokens" for family in await process.scrape())
    assert await process.answer(Live(), PATIENCE) is None
    process.say(Stop())
    assert await process.wait_exited(PATIENCE)
    assert process.status == ", exit status 0"


async def test_a_worker_that_cannot_serve_says_why(
    serve: Callable[[str], FurtherProcess],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartError, match=f"token process 2 did not start: .*{address}"):
            await serve(address).begin()
