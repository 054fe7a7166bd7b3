"""A worker whose token path runs in several processes: its engine is in the first, and the others
have requests of their own in it. To routers each of them is a worker.

One that ends, or hangs, takes its own requests with it, and is started again. All end with the
first. Design 0026 says why it is so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import metrics
from tandem.admin import SCRAPE_SECONDS
from tandem.engine.base import Sharing
from tandem.errors import EngineError
from tandem.hooks.contract import Phase
from tandem.pool.kept import Keeper, KeepLimits
from tandem.tracing.spans import Tracer
from tandem.worker.config import WorkerConfig
from tandem.worker.drain import SETTLE_SECONDS
from tandem.worker.phase import LoadPhase
from tandem.worker.process_link import FurtherProcess, Lost, Stop
from tandem.worker.server import Serves, WorkerServer

_LIMITS = KeepLimits(close=0.0, backoff=1.0)
_LAST_WORDS_SECONDS = 2.0
"""For routers to be told that the engine has died."""
FLUSH_SECONDS = 3.0
"""For further processes to close and end, after what each has for its own drain."""
_OF_ALL = frozenset({"tandem_worker_kv_used_ratio", "tandem_worker_network_bytes"})
"""What the first process says for all: a sum over processes would count it again."""
Order = tuple[int, Phase, WorkerConfig, LoadPhase]


def worker(
    phase: Phase, config: WorkerConfig, load: LoadPhase, tracer: Tracer | None = None
) -> Serves:
    """The worker that these settings describe, in one process or in several. Raises StartError."""
    if config.token_processes == 1:
        return WorkerServer(phase, config, load, tracer)
    first = partial(WorkerServer, phase, config, load, tracer, with_admin=False, divided=True)
    numbers = range(2, config.token_processes + 1)
    orders = [(number, phase, config.of_process(phase, number), load) for number in numbers]
    return DividedWorker(lambda drained: first(drained=drained), orders, config.drain_seconds)


class DividedWorker:
    """The first process's worker, and the further processes. `start`, `serve` and `close` are its
    life, as a Worker's.
    """

    def __init__(
        self,
        make: Callable[[Callable[[], Awaitable[None]]], WorkerServer],
        orders: Sequence[Order],
        drain_seconds: float,
        process: Callable[..., FurtherProcess] = FurtherProcess,
    ) -> None:
        """`make`: makes the first process's worker, which after its drain follows the engine until
        that is done which it is given. `orders`: what each further process serves. Raises
        StartError.
        """
        self._first = make(self._drained)
        self._drain_seconds = drain_seconds
        self._sharing: asyncio.Future[Sharing] = asyncio.get_running_loop().create_future()
        self._keeper = Keeper(
            len(orders),
            lambda place: process(orders[place], self._sharing, lambda: self._keeper.stopping),
            _LIMITS,
        )
        self._stopped_at: float | None = None

    async def start(self, stop: asyncio.Event) -> bool:
        """Whether it serves: not, where `stop` came first. Raises StartError."""
        await self._first.serve_admin(self._metrics(self._first.registry))
        create_task = asyncio.get_running_loop().create_task
        further, stopped = create_task(self._keeper.start()), create_task(stop.wait())
        try:
            if not await self._first.prepare(stop):
                return False
            assert self._first.sharing is not None, "engines that cannot be shared are refused"
            self._sharing.set_result(self._first.sharing)
            await asyncio.wait((further, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not further.done():
                return False
            further.result()
        finally:
            further.cancel()
            stopped.cancel()
            await asyncio.gather(further, stopped, return_exceptions=True)
        await self._first.open()
        return True

    async def serve(self, stop: asyncio.Event) -> None:
        """Until `stop`, and the drain of all processes after it. Raises EngineError as soon as the
        engine dies.
        """
        stopping = asyncio.get_running_loop().create_task(self._stop_with(stop))
        try:
            await self._first.serve(stop)
        except EngineError as error:
            self._end_all(Lost(error.message))
            await self._keeper.wait_ended(_LAST_WORDS_SECONDS)
            raise
        finally:
            stopping.cancel()

    async def close(self) -> None:
        """The further ones end before their engine does."""
        await self._keeper.close()
        await self._first.close()

    async def _stop_with(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._stopped_at = asyncio.get_running_loop().time()
        self._end_all(Stop())

    def _end_all(self, what: Stop | Lost) -> None:
        self._keeper.stopping = True
        for each in self._keeper.processes:
            each.say(what)

    async def _drained(self) -> None:
        """Until the further processes have drained and ended, for which they have as long as the
        first.
        """
        now = asyncio.get_running_loop().time()
        began = now if self._stopped_at is None else self._stopped_at
        left = began + self._drain_seconds + SETTLE_SECONDS + FLUSH_SECONDS - now
        await self._keeper.wait_ended(max(left, 0.0))

    def _metrics(self, own: CollectorRegistry) -> CollectorRegistry:
        loop = asyncio.get_running_loop()

        def scraped() -> list[list[Metric]]:
            return asyncio.run_coroutine_threadsafe(self._scrape(), loop).result(SCRAPE_SECONDS)

        registry = CollectorRegistry()
        registry.register(ProcessesCollector(own, scraped))
        return registry

    async def _scrape(self) -> list[list[Metric]]:
        return list(await asyncio.gather(*(each.scrape() for each in self._keeper.processes)))


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
