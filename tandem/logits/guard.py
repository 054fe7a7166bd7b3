"""Calls a deployment's code within a time limit."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

from tandem.hooks.interrupt import WATCH, OverdueError

DEFAULT_SECONDS = 1.0


class Guard:
    """Some calls, one after the other, each of which may take `seconds`.

    In a process's main thread after `WATCH.install()` a call is interrupted when its time is over.
    What could not be interrupted is found out when it returns, by its CPU time: a machine that
    stood still meanwhile is not the fault of the call. CPU time is asked for once, not twice a
    call, because that is a system call: a call is given as much of it as there cannot have been
    before it.
    """

    __slots__ = ("_cpu", "_seconds", "_started")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._cpu, self._started = thread_time(), perf_counter()

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What `function` answers. Raises what it raises, and OverdueError past the limit."""
        began = perf_counter()
        WATCH.enter(began, self._seconds)
        try:
            answer = function(*args)
        finally:
            WATCH.due = 0.0
        if perf_counter() - began > self._seconds and self._cpu_since(began) > self._seconds:
            raise OverdueError
        return answer

    def words(self, error: BaseException) -> str:
        """What happened, without the exception's own text: it may quote the prompt or the
        output.
        """
        if isinstance(error, OverdueError):
            return f"took longer than {self._seconds * 1000:g} ms"
        return f"raised {type(error).__name__}"

    def _cpu_since(self, began: float) -> float:
        """At least so much."""
        return thread_time() - self._cpu - (began - self._started)
