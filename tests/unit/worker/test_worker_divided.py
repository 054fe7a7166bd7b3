"""A worker of several processes: what the first one does with the others, which are stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import metrics
from tandem.errors import ConfigError, EngineError, StartError
from tandem.pool.boot import Loaded
from tandem.pool.kept import KeepLimits
from tandem.pool.process import LostError
from tandem.worker import divided, process_link
from tandem.worker.config import WorkerConfig
from tandem.worker.divided import DividedWorker, ProcessesCollector
from tandem.worker.process_link import (
    FurtherProcess,
    Join,
    Live,
    Lost,
    Scrape,
    Stop,
)
from tandem.worker.server import WorkerServer
from tandem_decode_worker.rules import load_phase

pytestmark = [pytest.mark.asyncio, pytest.mark.promise("S5-451")]
PATIENCE = 60.0


class Process(FurtherProcess):
    """One that is none: the test ends it."""

    def __init__(self, stage: Stage, *given: Any) -> None:
        super().__init__(*given)
        self.stage = stage
        self.refuses = ""
        self.hangs = False
        self.asked: list[Any] = []
        self.killed = False
        self.families: list[Metric] = []

    async def start(self, *_: Any, **__: Any) -> None:
        await self.stage.begins(self)

    def say(self, what: Any) -> None:
        self.asked.append(what)
        if isinstance(what, Lost):
            self.die()

    async def answer(self, question: Any, seconds: float) -> Any:
        self.asked.append(question)
        match question:
            case Join():
                return Loaded(self.refuses)
            case Scrape() if not self.lost:
                return self.families
            case Live() if not self.hangs and not self.lost:
                return None
        raise LostError("it does not answer within 60 s")

    def lose(self, why: str) -> None:
        self.killed = self.killed or not self.lost
        super().lose(why)

    def die(self) -> None:
        self._find_lost("it has ended")
        self.exited.set()

    @property
    def stopped(self) -> bool:
        return Stop() in self.asked


class First:
    """The first process's worker and its engine."""

    def __init__(self, drained_too: Callable[[], Awaitable[None]]) -> None:
        self.sharing: Any = self
        self._drained_too = drained_too
        self.left_by: list[int] = []
        self.registry = CollectorRegistry()
        self.watched: list[CollectorRegistry] = []
        self.opened = False
        self.closed = False
        self.death = asyncio.get_running_loop().create_future()
        self.drained = asyncio.Event()

    def ticket(self, process: int) -> bytes:
        return b"for %d" % process

    def left(self, process: int) -> None:
        self.left_by.append(process)

    async def prepare(self, stop: asyncio.Event) -> bool:
        return not stop.is_set()

    async def serve_admin(self, registry: CollectorRegistry) -> None:
        self.watched.append(registry)

    async def open(self) -> None:
        self.opened = True

    async def serve(self, stop: asyncio.Event) -> None:
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({stopped, self.death}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if self.death.done():
            raise self.death.result()
        await self.drained.wait()
        await self._drained_too()

    async def close(self) -> None:
        self.closed = True


class Stage:
    """A divided worker of three processes, and all that were started for it."""

    def __init__(self, *, refusals: dict[int, str] | None = None) -> None:
        self.started: list[Process] = []
        self.refusals = refusals or {}
        self.full = 0
        """So many starts fail."""
        self.starting: asyncio.Event | None = None
        """What starts wait for."""
        self.waiting = False
        self.stop = asyncio.Event()
        orders: Any = [(2,), (3,)]
        self.worker = DividedWorker(self._make, orders, 20.0, partial(Process, self))

    def _make(self, drained_too: Callable[[], Awaitable[None]]) -> Any:
        self.first = First(drained_too)
        return self.first

    async def begins(self, process: Process) -> None:
        if self.starting is not None:
            self.waiting = True
            await self.starting.wait()
        if self.full:
            self.full -= 1
            raise LostError("no more processes")
        process.refuses = self.refusals.pop(len(self.started) + 1, "")
        self.started.append(process)

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():  # noqa: ASYNC110 - of stand-ins that tell nobody
                await asyncio.sleep(0.001)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.Task[None]]:
        assert await self.worker.start(self.stop)
        task = asyncio.create_task(self.worker.serve(self.stop))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])
            await self.worker.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_link, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(divided, "_LIMITS", KeepLimits(close=0.0, backoff=0.001))


async def test_it_serves_when_all_of_its_processes_do() -> None:
    stage = Stage()
    assert await stage.worker.start(stage.stop)
    assert [each.asked[0] for each in stage.started] == [Join(b"for 2"), Join(b"for 3")]
    assert stage.first.opened
    await stage.worker.close()
    assert all(each.killed for each in stage.started)
    assert stage.first.closed


async def test_one_that_cannot_start_fails_the_start_with_its_reason() -> None:
    stage = Stage(refusals={2: "cannot listen on 0.0.0.0:7203"})
    with pytest.raises(StartError, match="token process 3 did not start: cannot listen on"):
        await stage.worker.start(stage.stop)
    assert not stage.first.opened
    await stage.worker.close()
    assert all(each.killed for each in stage.started)


async def test_a_stop_during_the_start_is_no_failure() -> None:
    stage = Stage()
    stage.stop.set()
    assert not await stage.worker.start(stage.stop)
    await stage.worker.close()


async def test_one_that_ends_leaves_nothing_open_and_is_started_again() -> None:
    stage = Stage()
    async with stage.serving():
        stage.started[1].die()
        await stage.until(lambda: len(stage.started) == 3 and stage.started[2].asked)
        assert stage.first.left_by == [3]
        assert (stage.started[2].number, stage.started[2].asked[0]) == (3, Join(b"for 3"))
        stage.started[2].die()
        await stage.until(lambda: len(stage.started) == 4)
        assert stage.first.left_by == [3, 3]
        assert not stage.started[0].lost


async def test_one_that_hangs_is_killed_and_started_again() -> None:
    stage = Stage()
    async with stage.serving():
        stage.started[0].hangs = True
        await stage.until(lambda: len(stage.started) == 3)
        assert stage.started[0].killed
        assert (stage.started[2].number, stage.first.left_by) == (2, [2])


async def test_one_that_cannot_start_again_is_tried_until_it_can() -> None:
    stage = Stage(refusals={3: "no memory", 4: "no memory"})
    async with stage.serving() as task:
        stage.started[0].die()
        await stage.until(lambda: len(stage.started) == 5 and Live() in stage.started[4].asked)
        assert [each.killed for each in stage.started[2:]] == [True, True, False]
        assert not task.done()


async def test_one_that_the_system_does_not_start_is_tried_again() -> None:
    stage = Stage()
    async with stage.serving():
        stage.full = 2
        stage.started[0].die()
        await stage.until(lambda: len(stage.started) == 3)
        assert stage.full == 0


async def test_none_is_started_again_once_all_are_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even what was lost before, and waits for its time."""
    monkeypatch.setattr(divided, "_LIMITS", KeepLimits(close=0.0, backoff=1.0))
    stage = Stage()
    async with stage.serving() as task:
        stage.started[0].die()
        await stage.until(lambda: len(stage.started) == 3 and stage.started[2].up)
        stage.started[2].die()
        await stage.until(lambda: stage.first.left_by == [2, 2])
        stage.stop.set()
        stage.started[1].die()
        stage.first.drained.set()
        await asyncio.wait_for(task, PATIENCE)
        assert len(stage.started) == 3


async def test_one_that_was_being_started_stops_with_the_others() -> None:
    stage = Stage()
    async with stage.serving() as task:
        stage.starting = asyncio.Event()
        stage.started[0].die()
        await stage.until(lambda: stage.waiting)
        stage.stop.set()
        await stage.until(lambda: stage.started[1].stopped)
        stage.starting.set()
        await stage.until(lambda: len(stage.started) == 3 and stage.started[2].stopped)
        for each in stage.started:
            each.die()
        stage.first.drained.set()
        await asyncio.wait_for(task, PATIENCE)


async def test_all_drain_together_and_none_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others have as long as the first, though that was idle."""
    monkeypatch.setattr(divided, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(divided, "FLUSH_SECONDS", 0.0)
    stage = Stage()
    async with stage.serving() as task:
        stage.stop.set()
        await stage.until(lambda: all(each.stopped for each in stage.started))
        stage.started[0].die()
        await stage.until(lambda: stage.first.left_by)
        stage.first.drained.set()
        await asyncio.sleep(0.02)
        assert not task.done(), "the other has requests yet"
        stage.started[1].die()
        await asyncio.wait_for(task, PATIENCE)
        assert len(stage.started) == 2
        assert not any(each.killed for each in stage.started)


async def test_when_the_engine_dies_all_are_told_why() -> None:
    stage = Stage()
    async with stage.serving() as task:
        stage.first.death.set_result(EngineError("a scheduler was killed"))
        with pytest.raises(EngineError, match="a scheduler was killed"):
            await asyncio.wait_for(task, PATIENCE)
        assert all(Lost("a scheduler was killed") in each.asked for each in stage.started)
        assert len(stage.started) == 2


class Told(Collector):
    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def counted(value: float) -> Metric:
    family = CounterMetricFamily("tandem_worker_tokens", "Tokens.", labels=("phase",))
    family.add_metric(("decode",), value)
    return family


def ratio() -> Metric:
    return metrics.gauge("tandem_worker_kv_used_ratio", "Share.", 0.5, phase="decode")


async def test_metrics_of_all_processes_are_one_exposition() -> None:
    own = CollectorRegistry()
    own.register(Told(counted(1), ratio()))
    registry = CollectorRegistry()
    registry.register(
        ProcessesCollector(own, lambda: [[counted(2), ratio()], [], [counted(4), ratio()]])
    )
    lines = [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]
    assert lines == [
        'tandem_worker_tokens_total{phase="decode",token_process="1"} 1.0',
        'tandem_worker_tokens_total{phase="decode",token_process="2"} 2.0',
        'tandem_worker_tokens_total{phase="decode",token_process="4"} 4.0',
        'tandem_worker_kv_used_ratio{phase="decode",token_process="1"} 0.5',
    ]


async def test_a_process_that_cannot_be_asked_costs_its_own_metrics_alone() -> None:
    stage = Stage()
    await stage.worker.start(stage.stop)
    stage.started[0].die()
    stage.started[1].families = [counted(3)]
    told = await asyncio.to_thread(generate_latest, stage.first.watched[0])
    assert b'tandem_worker_tokens_total{phase="decode",token_process="3"} 3.0' in told
    assert b'token_process="2"' not in told
    await stage.worker.close()


# --- settings ------------------------------------------------------------------------------------


def config(model_path: Any, **changes: Any) -> WorkerConfig:
    return WorkerConfig(model_path=model_path, **changes)


@pytest.mark.parametrize(
    ("listen", "number", "expected"),
    [
        ("0.0.0.0:7200", 2, "0.0.0.0:7202"),
        ("[::]:7200", 3, "[::]:7203"),
        ("", 2, "127.0.0.1:7202"),
        ("127.0.0.1:0", 4, "127.0.0.1:0"),
    ],
)
async def test_a_process_listens_beside_the_first(
    model_path: Any, listen: str, number: int, expected: str
) -> None:
    own = config(model_path, listen=listen, name="w").of_process("decode", number)
    assert (own.listen, own.name) == (expected, f"w-{number}")


async def test_a_port_that_is_none_is_refused(model_path: Any) -> None:
    with pytest.raises(ConfigError, match="token process 2 would listen at port 65536"):
        config(model_path, listen="127.0.0.1:65534").of_process("decode", 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_processes": 0}, "token_processes must be from 1 to 64"),
        ({"token_processes": 65}, "token_processes must be from 1 to 64"),
        ({"token_processes": 4, "max_held_bytes": 2**25}, "max_held_bytes must be at least"),
    ],
)
async def test_settings_that_cannot_be_are_refused(
    model_path: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        config(model_path, **changes)


async def test_what_may_be_held_is_divided(model_path: Any) -> None:
    assert config(model_path, token_processes=2, max_held_bytes=2**28).held_bytes() == 2**27


@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_worker_that_is_not_divided_is_one_process(model_path: Any, phase: Any) -> None:
    """In prefill, or in a program's own executor."""
    none: Any = None
    with pytest.raises(ConfigError, match="leave the setting token_processes at 1"):
        WorkerServer(phase, config(model_path, token_processes=2), none)


async def test_one_process_is_a_worker_as_ever(model_path: Any) -> None:
    made = divided.worker("decode", config(model_path, engine="sim"), load_phase)
    assert type(made) is WorkerServer


async def test_an_engine_that_cannot_be_shared_is_refused(model_path: Any) -> None:
    with pytest.raises(ConfigError, match="engine 'sim' serves one process"):
        divided.worker("decode", config(model_path, engine="sim", token_processes=2), load_phase)
