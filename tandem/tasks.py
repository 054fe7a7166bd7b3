"""Background tasks with an owner: kept alive, never silent, ended together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)
Made = TypeVar("Made")


class Tasks:
    """The tasks of one owner."""

    def __init__(self, on_crash: Callable[[BaseException], None] | None = None) -> None:
        """`on_crash`: called with whatever exception a task did not handle itself. None: somebody
        waits for each task that may raise.
        """
        self._on_crash = on_crash
        self._running: set[asyncio.Task[Any]] = set()

    def start(
        self, work: Coroutine[Any, Any, Made], *, name: str | None = None
    ) -> asyncio.Task[Made]:
        """A task that ends with `close`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel all and wait for their ends."""
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if self._on_crash is None or task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("background task failed: %s", task.get_name(), exc_info=error)
            self._on_crash(error)

    def __len__(self) -> int:
        return len(self._running)
