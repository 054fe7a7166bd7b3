"""A router and the workers of both phases in a thread of their own, for one executor.

They talk as they do between machines, by Unix sockets in a folder that only this user may enter.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import uvloop

from tandem.errors import EngineError, InternalError, StartError, TandemError
from tandem.hooks.classifiers.contract import ExternalClassifierHook
from tandem.hooks.contract import Phase
from tandem.logits.ready import READY
from tandem.worker.config import WorkerConfig
from tandem_executor.config import ExecutorConfig
from tandem_executor.errors import ShutDownError
from tandem_executor.live import ELSEWHERE, HOOKED, LiveClassifier, LiveCode, LoopOf
from tandem_executor.local import process, settings, workers
from tandem_executor.local.judging import Judges
from tandem_executor.local.process import ServingOrder
from tandem_router import server
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.server import RunningRouter

log = logging.getLogger(__name__)

_DRAIN_SECONDS = 5.0
"""The time for what was cancelled to reach the engines."""
_CLOSE_SECONDS = 30.0
"""Longest wait for the thread; all that it waits for has a bound of its own."""
_REGISTER_SECONDS = 30.0
"""Longest wait for a turn of the engines' loop."""
_OF_OTHER_PROCESSES = frozenset({"sglang"})
"""Engines that are given processes of their own: see process.py."""
_MOST_PATH_BYTES = 107
"""The longest name of a Unix socket."""


class LocalStack:
    """What an executor runs a model on, with the face of tandem_executor.serving.OtherStack."""

    own = True

    def __init__(
        self,
        model_path: Path,
        executor_config: ExecutorConfig,
        *,
        live: LiveCode,
        on_death: Callable[[TandemError], object],
    ) -> None:
        """`live`: what requests may name beside what the settings say. `on_death` is told, in
        another thread, why nothing more can be run.
        """
        self._model_path = model_path
        self._config = executor_config
        self._live = live
        self._on_death = on_death
        self._started: Future[str] = Future()
        self._judges: Judges | None = None
        """Where classifiers of the program's judge for workers in another process."""
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="tandem-engines", daemon=True)

    @property
    def refused(self) -> Mapping[str, str]:
        if not self._in_process:
            return ELSEWHERE
        given = self._config.worker_settings or {}
        judged = given.get("hook") or given.get("hooks") or self._live.judged
        return HOOKED if judged else {}

    @property
    def _in_process(self) -> bool:
        return self._config.engine not in _OF_OTHER_PROCESSES

    def start(self) -> str:
        """Returns the router's address once the engines are there. Raises StartError."""
        self._loop = uvloop.new_event_loop()
        self._thread.start()
        atexit.register(self.close)  # a daemon's thread would leave its folder and processes behind
        try:
            return self._started.result()
        except BaseException:
            self.close()
            raise

    def register_external_classifier_hook(self, hook: ExternalClassifierHook, loop: LoopOf) -> None:
        """Between two turns of the engines' loop, so that no output begins half judged."""
        classifier = LiveClassifier(hook, loop)
        if not self._started.done() and self._judges is None:
            self._live.add_classifier(classifier)
            return
        adding = self._add(classifier)
        try:
            added = asyncio.run_coroutine_threadsafe(adding, self._loop)
        except RuntimeError as error:  # the loop is closed
            adding.close()
            raise ShutDownError("The executor has failed") from error
        try:
            added.result(_REGISTER_SECONDS)
        except (CancelledError, TimeoutError) as error:
            raise ShutDownError("The executor has failed") from error

    def close(self) -> None:
        """Stop and free everything. May be called twice, and in any thread."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            with suppress(RuntimeError):  # it has just ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            if threading.current_thread() is not self._thread:
                self._thread.join(_CLOSE_SECONDS)

    # --- in the thread ---------------------------------------------------------------------------

    async def _add(self, classifier: LiveClassifier) -> None:
        """Raises LoadError."""
        if self._judges is None:
            self._live.add_classifier(classifier)
        else:
            await self._judges.register(classifier)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._main())
        gc.collect()  # engines are in cycles, and hold their KV memory and NIXL's sockets till then

    async def _main(self) -> None:
        serving = self._loop.create_task(self._serve())
        stopped = self._loop.create_task(self._stop.wait())
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not self._started.done():
            serving.cancel()
        await asyncio.wait({serving, stopped})

    async def _serve(self) -> None:
        """Until it is to stop, or until an engine dies; a start may be cancelled."""
        try:
            with _private_folder() as folder:
                async with self._serving(folder) as (died, router):
                    self._started.set_result(settings.address(folder, "router"))
                    stopped = self._loop.create_task(self._stop.wait())
                    ends: set[asyncio.Future[Any]] = {died, stopped}
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                    stopped.cancel()
                    if died.done():
                        self._on_death(died.result())
                    else:
                        await router.drain(_DRAIN_SECONDS)
        except Exception as error:
            if self._started.done():
                log.exception("an executor's engines have failed")
                self._on_death(InternalError("The executor failed; see its log"))
            else:
                self._started.set_exception(error)
        finally:
            if not self._started.done():
                self._started.set_exception(StartError("shut down while it started"))

    @asynccontextmanager
    async def _serving(
        self, folder: Path
    ) -> AsyncIterator[tuple[asyncio.Future[EngineError], RunningRouter]]:
        executor_config = self._config
        configs = {
            phase: settings.worker(phase, self._model_path, executor_config, folder)
            for phase in settings.PHASES
        }
        own = configs["decode"].logits_processors
        names = dict.fromkeys((*READY, *own, *self._live.names))
        router_config = settings.router(executor_config, folder, names)
        discovery = StaticDiscovery(
            prefill=[configs["prefill"].listen], decode=[configs["decode"].listen]
        )
        async with (
            self._workers(configs) as died,
            server.running(router_config, discovery=discovery) as router,
        ):
            yield died, router

    @asynccontextmanager
    async def _workers(
        self, configs: Mapping[Phase, WorkerConfig]
    ) -> AsyncIterator[asyncio.Future[EngineError]]:
        aggregated = not self._config.disaggregated
        if self._in_process:
            register = self._live.take_classifiers
            async with workers.serving(
                configs,
                aggregated=aggregated,
                register=register,
                parks=lambda: not self._live.judged,
                live=self._live,
            ) as died:
                yield died
            return
        parts = [configs] if aggregated else [{phase: each} for phase, each in configs.items()]
        orders = [ServingOrder(part, aggregated) for part in parts]
        async with process.serving(orders) as (died, self._judges):
            for early in self._live.early:
                await self._judges.register(early)
            yield died


@contextmanager
def _private_folder() -> Iterator[Path]:
    """One of this user's alone, and gone with all that is in it. Raises StartError where no socket
    could have a name in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="tandem-"))
    try:
        longest = folder / "prefill.sock"
        if len(os.fsencode(longest)) > _MOST_PATH_BYTES:
            raise StartError(f"{folder} is too long a name for Unix sockets: set TMPDIR")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
