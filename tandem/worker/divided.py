"""A worker whose token path runs in several processes: its engine is in the first, and the others
have requests of their own in it. To routers each of them is a worker.

One that ends, or hangs, takes its own requests with it, and is started again. All end with the
first. Design 0026 says why it is so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import metrics
from tandem.admin import SCRAPE_SECONDS
from tandem.engine.base import Sharing
from tandem.errors import EngineError, StartError
from tandem.hooks.contract import Phase
from tandem.tracing.spans import Tracer
from tandem.worker import further
from tandem.worker.config import WorkerConfig
from tandem.worker.drain import SETTLE_SECONDS
from tandem.worker.phase import LoadPhase
from tandem.worker.process_link import (
    FurtherProcess,
    Join,
    Live,
    Lost,
    Refused,
    Scrape,
    Stop,
    UnansweredError,
)
from tandem.worker.server import Serves, Worker

log = logging.getLogger(__name__)

JOIN_SECONDS = 600.0
"""For a process to import its engine's packages and serve; all of the model is there already."""
LOOK_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""The longest that an event loop may stand still before its process counts as hanging."""
FIRST_PAUSE_SECONDS = 1.0
LAST_PAUSE_SECONDS = 30.0
"""Before one that could not start is started again."""
_LAST_WORDS_SECONDS = 2.0
"""For routers to be told that the engine has died."""
FLUSH_SECONDS = 3.0
"""For further processes to close and end, after what each has for its own drain."""
_OF_ALL = frozenset({"tandem_worker_kv_used_ratio", "tandem_worker_network_bytes"})
"""What the first process says for all: a sum over processes would count it again."""
Start = Callable[[int], Awaitable[FurtherProcess]]
"""Starts the process of that number."""


def worker(
    phase: Phase, config: WorkerConfig, load: LoadPhase, tracer: Tracer | None = None
) -> Serves:
    """The worker that these settings describe, in one process or in several. Raises StartError."""
    if config.token_processes == 1:
        return Worker(phase, config, load, tracer)
    first = partial(Worker, phase, config, load, tracer, with_admin=False, divided=True)
    return DividedWorker(
        lambda drained: first(drained=drained), config, partial(_start, phase, config, load)
    )


async def _start(
    phase: Phase, config: WorkerConfig, load: LoadPhase, number: int
) -> FurtherProcess:
    own = config.of_process(phase, number)
    return await FurtherProcess.start(further.run, (number, phase, own, load))


class DividedWorker:
    """The first process's worker, and the further processes. `start`, `serve` and `close` are its
    life, as a Worker's.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], Awaitable[None]]], Worker],
        config: WorkerConfig,
        start: Start,
    ) -> None:
        """`make`: makes the first process's worker, which after its drain follows the engine until
        that is done which it is given. Raises StartError.
        """
        self._first = make(self._drained)
        self._drain_seconds = config.drain_seconds
        self._further = [Place(number, start) for number in range(2, config.token_processes + 1)]
        self._keeping: list[asyncio.Task[None]] = []
        self._stopped_at: float | None = None
        self._joined = False

    async def start(self, stop: asyncio.Event) -> bool:
        """Whether it serves: not, where `stop` came first. Raises StartError."""
        await self._first.serve_admin(self._metrics(self._first.registry))
        for each in self._further:
            await each.begin()  # its packages are imported while the engine loads
        if not await self._first.prepare(stop):
            return False
        sharing = self._first.sharing
        assert sharing is not None, "engines that cannot be shared are refused"
        joining = asyncio.gather(*(each.join(sharing) for each in self._further))
        stopped = asyncio.get_running_loop().create_task(stop.wait())
        first: set[asyncio.Future[Any]] = {joining, stopped}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not joining.done():
                return False
            if reasons := [each for each in joining.result() if each]:
                raise StartError(reasons[0])
        finally:
            joining.cancel()
            stopped.cancel()
        self._joined = True
        await self._first.open()
        return True

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`, and the drain of all processes after it. Raises EngineError as soon as the
        engine dies.
        """
        sharing = self._first.sharing
        assert sharing is not None
        create_task = asyncio.get_running_loop().create_task
        self._keeping = [create_task(each.keep(sharing)) for each in self._further]
        tasks = [*self._keeping, create_task(self._stop_with(stop))]
        try:
            await self._first.serve(stop)
        except EngineError as error:
            await asyncio.gather(*(each.tell_lost(error.message) for each in self._further))
            raise
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    log.error("watching a token process failed", exc_info=ended)

    async def close(self) -> None:
        """The further ones end before their engine does."""
        await asyncio.gather(*(each.end() for each in self._further))
        await self._first.close()

    async def _stop_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopped_at = asyncio.get_running_loop().time()
        await asyncio.gather(*(each.stop() for each in self._further))

    async def _drained(self) -> None:
        """Until the further processes have drained and ended, for which they have as long as the
        first.
        """
        now = asyncio.get_running_loop().time()
        began = now if self._stopped_at is None else self._stopped_at
        left = began + self._drain_seconds + SETTLE_SECONDS + FLUSH_SECONDS - now
        await asyncio.wait(self._keeping, timeout=max(left, 0.0))

    def _metrics(self, own: CollectorRegistry) -> CollectorRegistry:
        loop = asyncio.get_running_loop()

        def scraped() -> list[list[Metric]]:
            return asyncio.run_coroutine_threadsafe(self._scrape(), loop).result(SCRAPE_SECONDS)

        registry = CollectorRegistry()
        registry.register(ProcessesCollector(own, scraped))
        return registry

    async def _scrape(self) -> list[list[Metric]]:
        """None before they serve: they have nothing to tell, and are too busy to say so."""
        if not self._joined:
            return []
        return list(await asyncio.gather(*(each.scrape() for each in self._further)))


class Place:
    """Where one of the further processes runs, again and again."""

    def __init__(self, number: int, start: Start) -> None:
        self._number = number
        self._start = start
        self._process: FurtherProcess | None = None
        self._stopping = False

    async def begin(self) -> None:
        """Start it, to wait for a ticket. Raises StartError."""
        try:
            self._process = await self._start(self._number)
        except OSError as error:
            raise StartError(f"token process {self._number} cannot be started: {error}") from error
        if self._stopping:
            await self._tell(Stop())

    async def join(self, sharing: Sharing) -> str:
        """Have it serve. Returns why it cannot; empty: it does."""
        try:
            answer = await self._running().ask(
                Join(sharing.ticket(self._number)), seconds=JOIN_SECONDS
            )
        except UnansweredError as error:
            return f"token process {self._number} did not start: {error}; its own lines say more"
        if isinstance(answer, Refused):
            return f"token process {self._number} did not start: {answer.reason}"
        log.info("a token process serves", extra={"token_process": self._number})
        return ""

    async def keep(self, sharing: Sharing) -> None:
        """Once it has ended, end what it had open, and start it again, unless it was to stop."""
        while True:
            reason = await self._gone()
            sharing.left(self._number)
            if self._stopping:
                return
            log.error(
                "a token process has ended, and its requests with it; the process is started again",
                extra={"token_process": self._number, "reason": reason},
            )
            await self._again(sharing)

    async def stop(self) -> None:
        """Have it drain, and never start it again."""
        self._stopping = True
        await self._tell(Stop())

    async def tell_lost(self, reason: str) -> None:
        """The engine has died, which it tells its routers before it ends."""
        self._stopping = True
        await self._tell(Lost(reason))
        await self._running().ended(_LAST_WORDS_SECONDS)

    async def end(self) -> None:
        self._stopping = True
        if self._process is not None:
            await self._process.kill()

    async def scrape(self) -> list[Metric]:
        """Its metrics; none where it cannot be asked now."""
        try:
            found: list[Metric] = await self._running().ask(Scrape(), seconds=SCRAPE_SECONDS / 2)
        except UnansweredError:
            return []
        return found

    async def _tell(self, what: Stop | Lost) -> None:
        with suppress(UnansweredError):  # it has ended, or will be found to hang
            await self._running().ask(what, seconds=_LAST_WORDS_SECONDS)

    async def _again(self, sharing: Sharing) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            await asyncio.sleep(pause)
            if self._stopping:
                return
            try:
                await self.begin()
                reason = await self.join(sharing)
            except StartError as error:
                reason = str(error)
            if not reason:
                return
            log.error("%s", reason)
            await self._running().kill()
            sharing.left(self._number)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)

    async def _gone(self) -> str:
        """Wait until it has ended, by itself or because it hangs. Returns how."""
        process = self._running()
        try:
            while not await process.ended(LOOK_SECONDS):
                await process.ask(Live(), seconds=SILENCE_SECONDS)
        except UnansweredError as error:
            if not await process.ended(0):
                await process.kill()
                return str(error)
        return _ending(await process.kill())

    def _running(self) -> FurtherProcess:
        assert self._process is not None, "begun first"
        return self._process


class ProcessesCollector(Collector):
    """The metrics of all processes, each with its number as the label `token_process`."""

    def __init__(self, own: CollectorRegistry, further: Callable[[], list[list[Metric]]]) -> None:
        """`further`: those of the others, from the second on."""
        self._own = own
        self._further = further

    def collect(self) -> Iterator[Metric]:
        others = [
            [family for family in each if family.name not in _OF_ALL] for each in self._further()
        ]
        everybody = [list(self._own.collect()), *others]
        return metrics.merged(
            _labelled(family, str(number))
            for number, families in enumerate(everybody, start=1)
            for family in families
        )


def _labelled(family: Metric, number: str) -> Metric:
    family.samples = [
        sample._replace(labels={**sample.labels, "token_process": number})
        for sample in family.samples
    ]
    return family


def _ending(status: int | None) -> str:
    if status is None:
        return "it does not end"
    return f"signal {-status}" if status < 0 else f"status {status}"
