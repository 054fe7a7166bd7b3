"""Keeps the processes of the hook pool running: all at once at the start, each replaced when it is
lost, all ended together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from tandem.errors import StartError
from tandem.hooks.runner.processes.link import PoolLink
from tandem.hooks.runner.processes.spawner import Spawner

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """The pool's time limits, in seconds."""

    start: float = 300.0
    """For a process to import and build its hooks."""
    margin: float = 3.0
    """Beyond what hooks may take by their timeouts, until a silent process counts as hung."""
    close: float = 10.0
    """For all processes to end in order."""
    backoff: float = 0.5
    """Before a process that was replaced already is replaced again; doubled each time. The first
    replacement comes at once."""
    max_backoff: float = 30.0
    stable: float = 60.0
    """A process that was up so long is replaced at once again."""


class Keeper:
    """The processes by slot, and a task for each slot."""

    def __init__(
        self,
        *,
        workers: int,
        boot: Callable[[int], bytes],
        new_link: Callable[[Spawner], PoolLink],
        limits: PoolLimits,
    ) -> None:
        self._workers = workers
        self._boot = boot
        self._new_link = new_link
        self._limits = limits
        self._spawner = Spawner()
        self._tasks: set[asyncio.Task[None]] = set()
        self.links: list[PoolLink] = []
        self.restarts = 0

    def usable(self) -> list[PoolLink]:
        """Those that take new requests. While none is up, those that are starting: they read what
        they were sent when they are up, and the time of a start is bounded.
        """
        return [link for link in self.links if link.up] or [
            link for link in self.links if link.starting
        ]

    async def start(self) -> None:
        """Raises LoadError or StartError."""
        self.links = [self._new_link(self._spawner) for _ in range(self._workers)]
        error: StartError | None = None
        try:
            async with asyncio.TaskGroup() as starts:
                for slot in range(self._workers):
                    starts.create_task(self._start(slot))
        except* StartError as errors:
            error = _first(errors)
        if error is not None:
            raise error
        loop = asyncio.get_running_loop()
        for slot in range(self._workers):
            task = loop.create_task(self._keep(slot), name=f"hook-pool-{slot}")
            task.add_done_callback(_log_crash)
            self._tasks.add(task)
        log.info("the hook processes are up", extra={"count": self._workers})

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for link in self.links:
            link.finish()
        until = monotonic() + self._limits.close
        for link in self.links:
            if not await link.wait_exited(until - monotonic()):
                link.lose("it does not end")
                await link.wait_exited()
        self._spawner.close()

    async def _start(self, slot: int) -> None:
        await self.links[slot].start(self._boot(slot), self._limits.start)

    async def _keep(self, slot: int) -> None:
        """Replace what is lost, for ever."""
        quick = 0
        while True:
            link = self.links[slot]
            await link.gone.wait()
            await link.wait_exited()
            if link.up_seconds >= self._limits.stable:
                quick = 0
            delay = self._delay(quick)
            quick += 1
            log.warning(
                "replacing a hook process",
                extra={"reason": f"{link.lost}{link.status}", "seconds": delay},
            )
            await asyncio.sleep(delay)
            self.restarts += 1
            self.links[slot] = self._new_link(self._spawner)
            try:
                await self._start(slot)
            except StartError as error:
                log.error("a hook process cannot be replaced", extra={"reason": str(error)})

    def _delay(self, quick: int) -> float:
        """After so many replacements that did not last."""
        if not quick:
            return 0.0
        return float(min(self._limits.backoff * 2 ** min(quick - 1, 20), self._limits.max_backoff))


def _first(errors: BaseExceptionGroup[StartError]) -> StartError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StartError)
    return error


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("hook processes are not replaced any more", exc_info=error)
