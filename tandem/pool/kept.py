"""Processes that are kept running: all start together, and each is replaced when it is lost.

A kept process is told things at any time and answers in its own. It is killed when it owes an
answer and says nothing for longer than it may, or does not read what it is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Generic, TypeVar

from tandem.errors import StartError
from tandem.pool.frames import parts
from tandem.pool.process import READ_SECONDS, ChildProcess

log = logging.getLogger(__name__)
MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""How much may wait beyond what the socket takes. A process that hangs is found out by its silence
long before.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLimits:
    """Seconds."""

    start: float = 300.0
    """For a process to start and to be up."""
    margin: float = 3.0
    """Beyond what an answer may take, until a silent process counts as hung."""
    close: float = 10.0
    """For all processes to end in order."""
    backoff: float = 0.5
    """Before a process that was replaced already is replaced again; doubled each time. The first
    replacement comes at once."""
    max_backoff: float = 30.0
    stable: float = 60.0
    """A process that was up so long is replaced at once again."""


class KeptProcess(ChildProcess):
    """One process of a Keeper."""

    def __init__(
        self,
        name: str,
        *,
        max_message_bytes: int,
        on_message: Callable[[bytes | bytearray], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """As ChildProcess. `name`: what logs call the process. `on_message` sets `heard_at`, and
        counts down `owed`.
        """
        super().__init__(
            max_message_bytes=max_message_bytes, on_message=on_message, on_lost=on_lost
        )
        self.name = name
        self.owed = 0
        """Answers to what the process was told."""
        self.heard_at = 0.0
        """When the process said something, by the monotonic clock."""
        self._has_begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._doubted = False
        """Whether the process is overdue, unless an answer waits to be read."""

    async def begin(self) -> None:
        """Until the process is up. Raises StartError; then the process is lost."""
        raise NotImplementedError

    def buried(self) -> None:
        """Nothing is left of a process that was up, or was to replace one."""

    def patience(self) -> float:
        """The seconds within which the process must say something while it owes an answer."""
        raise NotImplementedError

    @property
    def up(self) -> bool:
        """Whether the process does its work."""
        return self._has_begun and not self.lost

    @property
    def starting(self) -> bool:
        """Whether the process will be up, or be lost, in bounded time. Until then it is told what
        it will read.
        """
        return not self._has_begun and not self.lost

    def has_begun(self) -> None:
        """The process is up: from now on it must answer in time."""
        self._has_begun = True
        self.heard_at = monotonic()
        self._look()

    def tell(self, payload: bytes, answers: int) -> None:
        """Send a message that is answered so often; never waits."""
        transport = self._transport
        if transport is None or self.lost:
            return
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.lose("it does not read")
            return
        if not self.owed:
            self.heard_at = monotonic()
        self.owed += answers
        transport.writelines(parts(payload))
        if self._timer is None and self._has_begun:
            self._look()

    def _look(self) -> None:
        """Whether the process answers. Looks again while it owes something."""
        self._timer = None
        if not self.owed or self.lost:
            return
        left = self.heard_at + self.patience() - monotonic()
        if left <= 0 and self._doubted:
            self.lose("it does not answer")
            return
        self._doubted = left <= 0
        wait = READ_SECONDS if self._doubted else left
        self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _find_lost(self, why: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super()._find_lost(why)


P = TypeVar("P", bound=KeptProcess)


class Keeper(Generic[P]):
    """The processes by place, and a task for each place that replaces what is lost."""

    def __init__(self, count: int, new: Callable[[int], P], limits: KeepLimits) -> None:
        """`new`: makes the process of a place."""
        self._count = count
        self._new = new
        self._limits = limits
        self._tasks: set[asyncio.Task[None]] = set()
        self.processes: list[P] = []
        self.stopping = False
        """No process is replaced any more."""
        self.restarts = 0
        """Processes that were replaced, or tried to be."""

    def usable(self) -> list[P]:
        """The processes that are up. While none is up, those that start: a process reads what it
        was told when it is up, and the time of its start is bounded.
        """
        return [each for each in self.processes if each.up] or [
            each for each in self.processes if each.starting
        ]

    async def start(self) -> None:
        """Until all are up. Raises StartError; then `close` must be called."""
        self.processes = list(map(self._new, range(self._count)))
        error: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as starts:
                for process in self.processes:
                    starts.create_task(process.begin())
        except* StartError as errors:
            error = errors.exceptions[0]
        if error is not None:
            raise error
        for place in range(self._count):
            task = asyncio.get_running_loop().create_task(self._keep(place))
            task.add_done_callback(_log_crash)
            self._tasks.add(task)

    async def wait_ended(self, seconds: float | None = None) -> None:
        """Once `stopping` is set: until all have ended, or the time is over."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self) -> None:
        """Let those that are up end by themselves, and kill the others, in bounded time."""
        for task in self._tasks:
            task.cancel()
        await self.wait_ended()
        limits = self._limits
        await asyncio.gather(
            *(each.close(limits.close if each.up else 0.0) for each in self.processes)
        )

    async def _keep(self, place: int) -> None:
        """Replace what is lost, until `stopping`."""
        limits, quick = self._limits, 0
        while True:
            process, began = self.processes[place], monotonic()
            await process.gone.wait()
            await process.wait_exited()
            await process.end()
            process.buried()
            if monotonic() - began >= limits.stable:
                quick = 0
            delay = min(limits.backoff * 2 ** min(quick - 1, 20), limits.max_backoff) * bool(quick)
            quick += 1
            why = f"{process.lost}{process.status}"
            if not self.stopping:
                log.warning("replacing %s", process.name, extra={"reason": why, "seconds": delay})
                await asyncio.sleep(delay)
            if self.stopping:
                return
            self.restarts += 1
            process = self.processes[place] = self._new(place)
            try:
                await process.begin()
            except StartError as error:
                log.error("%s cannot be replaced", process.name, extra={"reason": str(error)})


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a process is not replaced any more", exc_info=error)
