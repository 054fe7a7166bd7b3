"""Judgements that run while their worker goes on: tasks with an owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence

from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.runner import ClassifierRunner

log = logging.getLogger(__name__)


class Judgements:
    """At most one open judgement for each key. All methods are called on the event loop."""

    def __init__(
        self, classifiers: ClassifierSet, deliver: Callable[[Hashable, Judgement], None]
    ) -> None:
        """`deliver` is called on the event loop with a key and its judgement, in bounded time,
        unless it was cancelled.
        """
        self._classifiers = classifiers
        self._deliver = deliver
        self._open: dict[Hashable, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def ask(
        self, key: Hashable, ctx: ScoringContext, runners: Sequence[ClassifierRunner] | None = None
    ) -> None:
        """Begin to judge one output, as ClassifierSet.judge describes."""
        task = asyncio.get_running_loop().create_task(self._judge(key, ctx, runners))
        self._open[key] = task
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self, key: Hashable) -> None:
        """The output is over: its classifiers are cancelled and nothing is delivered (S4-115).
        Unknown: no effect.
        """
        task = self._open.pop(key, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancel all. It does not wait for classifiers: ClassifierSet.shutdown does, bounded."""
        for key in list(self._open):
            self.cancel(key)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _judge(
        self, key: Hashable, ctx: ScoringContext, runners: Sequence[ClassifierRunner] | None
    ) -> None:
        judgement = await self._classifiers.judge(ctx, runners)
        del self._open[key]
        self._deliver(key, judgement)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a judgement could not be delivered", exc_info=error)
