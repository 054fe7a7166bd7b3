"""An asyncio event loop in virtual time: nothing waits, and the same seed runs the same way.

Every handle knows by its context which simulated process it belongs to. A paused process's handles
are kept, in order, until it goes on: timers that came due meanwhile stand among the messages that
arrived. A dead process never goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

NETWORK = contextvars.Context()
"""Belongs to no process: what is on its way arrives whoever is paused."""
PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""Whose code runs."""


class Process:
    """One simulated process: a name, and whether it runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paused = False
        self.resumed = 0.0
        """When it was last paused no longer."""
        self.dead = False
        self.held: deque[asyncio.Handle] = deque()
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    @property
    def stopped(self) -> bool:
        return self.paused or self.dead


class BrokenRule(AssertionError):
    """A rule does not hold; the message says which, when and for whom."""


class _Nothing(list[str]):
    """Takes what nobody wants to know."""

    def append(self, item: str) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """`rest` is called whenever nothing is left to do before time goes on."""

    def __init__(self, rest: Callable[[], None]) -> None:
        super().__init__()
        self._now = 0.0
        self._set = 0
        self.tasks_made = 0
        self._rest = rest
        self.faults: list[str] = []
        """Broken rules; the first ends the run."""
        self.set_exception_handler(self._note)
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a part of a process."""
        return self.create_task(work, context=process.context.copy())

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Timers of the same moment come in the order in which they were set."""
        self._set += 1
        return super().call_at(when + self._set * 1e-12, callback, *args, context=context)

    def pause(self, process: Process) -> None:
        process.paused = True

    def resume(self, process: Process) -> None:
        process.paused = False
        process.resumed = self._now
        self._ready.extend(process.held)
        process.held.clear()

    def at(self, when: float, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Outside of every process."""
        return self.call_at(when, call, *args, context=NETWORK)

    def later(self, seconds: float, call: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        return self.at(self._now + seconds, call, *args)

    def abandon(self) -> None:
        """Cancel what still runs; what goes wrong from now on is of no interest."""
        self._rest = lambda: None
        self.set_exception_handler(lambda loop, context: None)
        self.faults = _Nothing()
        self.run_until_complete(self._cancel_all())

    async def _cancel_all(self) -> None:
        for _ in range(5):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=5.0)

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.faults.append(f"unhandled: {context.get('message')}: {error!r}")

    # --- what asyncio.BaseEventLoop asks of its children ---

    def _run_once(self) -> None:
        ready: deque[asyncio.Handle] = self._ready
        if not ready and not self._stopping:
            self._rest()
            self._raise()
            self._advance()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)
            if process is not None and process.stopped:
                process.held.append(handle)
                continue
            handle._run()
            if self.faults:
                self._raise()

    def _advance(self) -> None:
        timers: list[Any] = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        if not timers:
            raise BrokenRule("everything waits and nothing will ever come")
        self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            handle = heapq.heappop(timers)
            handle._scheduled = False
            self._ready.append(handle)

    def _raise(self) -> None:
        if self.faults:
            raise BrokenRule(self.faults[0])

    def _asyncgen_finalizer_hook(self, agen: object) -> None:
        """Generators of dead processes are not closed: nothing of those runs."""

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass


class _Task(asyncio.Task[Any]):
    """Its place in a set does not depend on its address, so that groups are cancelled in the same
    order whenever a seed runs.
    """

    def __init__(self, number: int, work: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
) -> asyncio.Task[Any]:
    assert isinstance(loop, VirtualLoop)
    loop.tasks_made += 1
    task = _Task(loop.tasks_made, work, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # dead processes leave theirs
    return task
