"""The executor for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from types import TracebackType
from typing import NoReturn, overload

from tandem.errors import TandemError
from tandem.hooks.classifiers.contract import ExternalClassifierHook
from tandem_executor.calls import Calls, awaited
from tandem_executor.config import ExecutorConfig, checked_copy
from tandem_executor.core import ExecutorCore
from tandem_executor.left_out import METHODS, refuse
from tandem_executor.live import Live
from tandem_executor.remote import RemoteBackend
from tandem_executor.requests import Request
from tandem_executor.responses import Response
from tandem_executor.serving import serving
from tandem_executor.statistics import IterationStats, RequestStatsPerIteration
from tandem_executor.waiters import Waiter

_GRAIN_SECONDS = 0.002
"""After the limits were looked at they are let alone for so long: each look goes through all."""


class AsyncExecutor:
    """The same as Executor, on the event loop on which it is entered: `async with AsyncExecutor(…)
    as executor`. Only what waits is awaited.
    """

    def __init__(
        self, where: str | bytes | os.PathLike[str], executor_config: ExecutorConfig | None = None
    ) -> None:
        """Raises ConfigError where `where` is neither a router nor a model's folder, or the
        configuration cannot be used.
        """
        config = checked_copy(executor_config)
        core = ExecutorCore(
            max_queue_size=config.max_queue_size,
            max_open_sequences=config.max_open_sequences,
            max_unread_tokens=config.max_unread_tokens,
            iter_stats_max_iterations=config.iter_stats_max_iterations,
            request_stats_max_iterations=config.request_stats_max_iterations,
            max_logits_rows=config.max_logits_rows,
        )
        live = Live(config.logits_post_processor_config)
        lock = threading.Lock()  # nobody waits for it; of all that can be entered it takes least
        self._core = core
        self._limits: dict[Callable[..., object], float] = {}
        """Who waits, and until when, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        """The one timer of every waiter."""
        self._timer_due = inf
        self._serving = serving(where, config, live, self._stop_soon)
        self._backend = RemoteBackend(config, core, lock, live)
        self._calls = Calls(
            config,
            core,
            lock,
            self._backend.turn_soon,
            refused=lambda: self._serving.refused,
            scores=self._serving.own,
        )

    def enqueue_request(self, request: Request) -> int:
        """The same as Executor.enqueue_request does."""
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: Sequence[Request]) -> list[int]:
        """The same as Executor.enqueue_requests does."""
        return self._calls.enqueue(requests)

    @overload
    async def await_responses(
        self, id: Sequence[int], timeout: timedelta | float | None = None
    ) -> list[list[Response]]: ...

    @overload
    async def await_responses(
        self, *, ids: Sequence[int], timeout: timedelta | float | None = None
    ) -> list[list[Response]]: ...

    @overload
    async def await_responses(
        self, id: int | timedelta | None = None, timeout: timedelta | float | None = None
    ) -> list[Response]: ...

    async def await_responses(
        self,
        id: int | Sequence[int] | timedelta | None = None,
        timeout: timedelta | float | None = None,
        *,
        ids: Sequence[int] | None = None,
    ) -> list[Response] | list[list[Response]]:
        """As Executor.await_responses. Tasks that wait may be cancelled: nothing is lost."""
        asked, seconds = awaited(id, timeout, ids)
        self._calls.check_open()
        until = self._loop.time() + seconds
        if asked is None or isinstance(asked, int):
            return await self._await(asked, until)
        return [await self._await(each, until) for each in asked]

    def get_num_responses_ready(self, id: int | None = None) -> int:
        """The same as Executor.get_num_responses_ready does."""
        return self._calls.ready(id)

    def cancel_request(self, id: int) -> None:
        """The same as Executor.cancel_request does."""
        self._calls.cancel(id)

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """The same as Executor.get_latest_iteration_stats does."""
        return self._calls.iteration_stats()

    def get_latest_request_stats(self) -> list[RequestStatsPerIteration]:
        """The same as Executor.get_latest_request_stats does."""
        return self._calls.request_stats()

    def register_external_classifier_hook(self, hook: ExternalClassifierHook) -> None:
        """As Executor.register_external_classifier_hook, also before the executor is entered; it is
        awaited on the program's own event loop.
        """
        self._calls.check_open()
        self._serving.register_external_classifier_hook(hook, lambda: self._loop)

    def can_enqueue_requests(self) -> bool:
        """Whether it has not been shut down."""
        return not self._calls.closed

    async def shutdown(self) -> None:
        """The same as Executor.shutdown does."""
        self._calls.shut_down()
        self._running.cancel()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.wait([self._running])
        await asyncio.to_thread(self._serving.close)

    async def __aenter__(self) -> AsyncExecutor:
        """Waits for engines of its own. Raises StartError."""
        started = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        try:
            router = await asyncio.to_thread(self._serving.start)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self._serving.close))
            raise
        self._running = self._loop.create_task(self._backend.run(router, started.set))
        await started.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.shutdown()

    def __getattr__(self, name: str) -> NoReturn:
        """Raises UnsupportedError for a method that is left out."""
        if name in METHODS:
            refuse(f"AsyncExecutor.{name}", METHODS[name])
        raise AttributeError(f"an AsyncExecutor has no {name!r}")

    def _stop_soon(self, error: TandemError) -> None:
        """The engines are gone; it is said in their thread."""
        with suppress(RuntimeError):  # so is the loop
            self._loop.call_soon_threadsafe(self._core.stop, error)

    async def _await(self, request_id: int | None, until: float) -> list[Response]:
        """By a future, which takes less than an Event."""
        woken: asyncio.Future[bool]

        def wake(*, in_time: bool = True) -> None:
            if not woken.done():
                woken.set_result(in_time)

        waiter = Waiter(request_id, wake)
        responses: list[Response] | None = None
        in_time = True
        try:
            while in_time and (responses := self._calls.read(request_id, waiter)) is not None:
                if responses:
                    return responses
                woken = self._loop.create_future()
                self._limits[wake] = until
                if until < self._timer_due:
                    self._arm(until)
                in_time = await woken
            return []
        finally:
            self._limits.pop(wake, None)
            if not responses:
                self._calls.forget(waiter)

    def _arm(self, until: float) -> None:
        """Look at the limits at `until`, which is the first of them. Most waits end long before
        theirs, and a timer for each costs uvloop a turn to take it away.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = until
        self._timer = self._loop.call_at(until, self._on_time)

    def _on_time(self) -> None:
        """Wake the waiters whose deadline has passed."""
        now = max(self._loop.time(), self._timer_due)  # uvloop rounds, and may come a moment early
        self._timer, self._timer_due = None, inf
        over = [wake for wake, until in self._limits.items() if until <= now]
        for wake in over:
            del self._limits[wake]
            wake(in_time=False)
        until = min(self._limits.values(), default=inf)
        if until != inf:
            self._arm(max(until, now + _GRAIN_SECONDS))
