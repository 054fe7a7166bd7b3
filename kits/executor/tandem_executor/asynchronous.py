"""The executor for programs with an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import overload

from tandem.errors import TandemError
from tandem.hooks.classifiers.contract import ExternalClassifierHook
from tandem_executor.calls import ExecutorCalls, awaited
from tandem_executor.config import ExecutorConfig
from tandem_executor.responses import Response
from tandem_executor.waiters import Waiter

_GRAIN_SECONDS = 0.002
"""After the limits were looked at they are let alone for so long: each look goes through all."""


class AsyncExecutor(ExecutorCalls):
    """The same as Executor, on the event loop on which it is entered: `async with AsyncExecutor(…)
    as executor`. Only what waits is awaited.
    """

    def __init__(
        self, where: str | bytes | os.PathLike[str], executor_config: ExecutorConfig | None = None
    ) -> None:
        super().__init__(where, executor_config)
        self._nudge = self._backend.turn_soon
        self._limits: dict[Callable[..., object], float] = {}
        """Who waits, and until when, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        """The one timer of every waiter."""
        self._timer_due = inf

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
        self._core.check_open()
        until = self._loop.time() + seconds
        if asked is None or isinstance(asked, int):
            return await self._await(asked, until)
        return [await self._await(each, until) for each in asked]

    def register_external_classifier_hook(self, hook: ExternalClassifierHook) -> None:
        """As Executor.register_external_classifier_hook, also before the executor is entered; it is
        awaited on the program's own event loop.
        """
        self._core.check_open()
        self._serving.register_external_classifier_hook(hook, lambda: self._loop)

    async def shutdown(self) -> None:
        """The same as Executor.shutdown does."""
        self._shut_down()
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

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    def _engines_died(self, error: TandemError) -> None:
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
            while in_time and (responses := self._read(request_id, waiter)) is not None:
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
                self._forget(waiter)

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
