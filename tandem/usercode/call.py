"""The one place that calls user code, and turns whatever it does into a value: its answer, or what
it failed by. Nothing that user code raises passes, not even SystemExit.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import current_thread, main_thread
from time import perf_counter, thread_time
from traceback import clear_frames
from types import TracebackType
from typing import Any, Protocol

from tandem.usercode.deadline import WATCH, OverdueError, Watch

_MAX_NAME_CHARS = 100
_UNWATCHED = Watch()
"""The watch of other threads' calls: nothing can interrupt them, and what is written down of them
must not have the main thread interrupted."""
_bare_name: Callable[[type], str] = type.__dict__["__name__"].__get__
_traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__[
    "__traceback__"
].__get__


class Failed:
    """A call that raised, or took too long. It stands where the answer would."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        if issubclass(type(error), MemoryError):
            clear_frames(_traceback_of(error))  # they hold what leaves no room to go on
        self.error = error

    @property
    def overdue(self) -> bool:
        """Whether the call took too long, by our clock or by its own."""
        return issubclass(type(self.error), OverdueError | TimeoutError)

    @property
    def kind(self) -> str:
        """The name of the exception's class, without the exception's own text, which may quote the
        prompt or the output.
        """
        return name_of(type(self.error))

    @property
    def text(self) -> str:
        """The exception's own text, if it gives one."""
        try:
            return str(self.error)
        except BaseException as error:  # noqa: BLE001 - it comes from user code too
            return f"(its text raised {name_of(type(error))})"

    @property
    def words(self) -> str:
        """The exception as it reads, for failures at start, where no client's text is near."""
        return f"{self.kind}: {self.text}"

    @property
    def place(self) -> str:
        """The line that raised; empty where unknown."""
        return place_of(self.error)


class Backlog(Protocol):
    """Work of others, which a call has to wait for where it needs its answer."""

    def mark(self) -> None:
        """A call begins: what is to be done by now is not the call's."""

    def done(self) -> float:
        """When all of that was done, by perf_counter; minus infinite where it is not yet: then the
        call, which is running or over, has not waited for it.
        """


class Caller:
    """Calls that may take `seconds` each.

    In the main thread, after `WATCH.install()`, a call is interrupted when its time is over. What
    could not be interrupted is found out when it returns: by the time that passed, or with
    `by_cpu_time` by the CPU time that it used, because a machine that stood still meanwhile is not
    the fault of the call. CPU time is asked for once and not with each call, because that is a
    system call: a call is given as much of it as there cannot have been before it.

    What a call waits for of its `backlog` is not its time either. That is asked of a call whose
    time seems to be over, and of no other.

    It calls in the thread in which it was made.
    """

    __slots__ = ("_backlog", "_cpu", "_made", "_watch", "seconds", "took")

    def __init__(
        self, seconds: float, *, by_cpu_time: bool = False, backlog: Backlog | None = None
    ) -> None:
        self.seconds = seconds
        self.took = 0.0
        """Seconds that the last call took."""
        self._watch = WATCH if current_thread() is main_thread() else _UNWATCHED
        self._backlog = backlog
        self._made = perf_counter()
        self._cpu = thread_time() if by_cpu_time else None

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """What `function` answers, or Failed. (One argument, because a list of them costs more than
        all else here, and hooks are called for each token.)
        """
        began = perf_counter()
        watch = self._watch
        # CPython looks for signals where a function begins, a loop turns or a C function returns:
        # all within the try, and nowhere between an exception's arrival and the first assignment.
        try:
            if self._backlog is not None:
                self._backlog.mark()
            watch.caller = self
            watch.due = due = began + self.seconds
            if due < watch.next_look:
                watch.look_at(due)
            answer = function(argument)
            watch.due = 0.0
        except BaseException as error:  # noqa: BLE001 - not even sys.exit() ends a worker
            watch.due = 0.0
            self.took = perf_counter() - began
            return Failed(error)
        self.took = took = perf_counter() - began
        if took > self.seconds and self._is_overdue(began, took):
            return Failed(OverdueError())
        return answer

    def overdue_at(self) -> float:
        """When its call is overdue, by perf_counter: see tandem.usercode.deadline.Limited."""
        return self._backlog_done() + self.seconds

    async def call_async(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """What an async function answers, or Failed. Raises this task's own cancellation alone."""
        began = perf_counter()
        try:
            async with asyncio.timeout(self.seconds):
                answer = await function(*args)
        except BaseException as error:  # noqa: BLE001 - as above
            self.took = perf_counter() - began
            return failed_await(error)
        self.took = perf_counter() - began
        return answer

    def _is_overdue(self, began: float, took: float) -> bool:
        if self._cpu is not None:
            took = thread_time() - self._cpu - (began - self._made)
        waited = max(0.0, self._backlog_done() - began)
        return took - waited > self.seconds

    def _backlog_done(self) -> float:
        return -math.inf if self._backlog is None else self._backlog.done()


def failed_await(error: BaseException) -> Failed:
    """What ended an await of user code. Raises it again where it is not the user code's doing: this
    task is to end.
    """
    if isinstance(error, GeneratorExit):
        raise error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise error
    return Failed(error)


def name_of(kind: type) -> str:
    """The name of a class that user code may have made, without asking the class for it."""
    return _bare_name(kind)[:_MAX_NAME_CHARS]


def place_of(error: BaseException | None) -> str:
    """Where an exception was raised, such as "at guard.py:12"; empty where that is not known. Runs
    no code of the exception's, nor of the module's that raised it.
    """
    frame = None if error is None else _traceback_of(error)
    if frame is None:
        return ""
    while frame.tb_next is not None:
        frame = frame.tb_next
    file = Path(frame.tb_frame.f_code.co_filename).name[:_MAX_NAME_CHARS]
    return f"at {file}:{frame.tb_lineno}"
