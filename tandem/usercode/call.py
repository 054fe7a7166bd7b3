"""The one place that calls user code, and turns whatever it does into a value: its answer, or what
it failed by. Nothing that user code raises passes, not even SystemExit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import current_thread, main_thread
from time import perf_counter, thread_time
from traceback import clear_frames
from types import TracebackType
from typing import Any

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
        """It took too long, by our clock or by its own."""
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
        """Where it was raised; empty where that is not known."""
        return place_of(self.error)


class Caller:
    """Calls that may take `seconds` each.

    In the main thread, after `WATCH.install()`, a call is interrupted when its time is over. What
    could not be interrupted is found out when it returns: by the time that passed, or with
    `by_cpu_time` by the CPU time that it used, because a machine that stood still meanwhile is not
    the fault of the call. CPU time is asked for once and not with each call, because that is a
    system call: a call is given as much of it as there cannot have been before it.

    It calls in the thread in which it was made.
    """

    __slots__ = ("_cpu", "_made", "_watch", "seconds", "took")

    def __init__(self, seconds: float, *, by_cpu_time: bool = False) -> None:
        self.seconds = seconds
        self.took = 0.0
        """Seconds that the last call took."""
        self._watch = WATCH if current_thread() is main_thread() else _UNWATCHED
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
        if took > self.seconds and self._is_overdue(began):
            return Failed(OverdueError())
        return answer

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

    def _is_overdue(self, began: float) -> bool:
        if self._cpu is None:
            return True
        return thread_time() - self._cpu - (began - self._made) > self.seconds


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
