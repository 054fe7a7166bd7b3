"""Calls a deployment's code within a time limit."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any

from tandem.hooks.interrupt import WATCH, OverdueError

DEFAULT_SECONDS = 1.0


def call(function: Callable[..., Any], *args: Any, seconds: float) -> Any:
    """What `function` answers. Raises what it raises, and OverdueError past the limit.

    In a process's main thread after `WATCH.install()` the call is interrupted when its time is
    over. What could not be interrupted is found out when it returns, by its CPU time: a machine
    that stood still meanwhile is not the fault of the call.
    """
    cpu = thread_time()
    WATCH.enter(perf_counter(), seconds)
    try:
        answer = function(*args)
    finally:
        WATCH.due = 0.0
    if thread_time() - cpu > seconds:
        raise OverdueError
    return answer


def words(error: BaseException, seconds: float) -> str:
    """What happened, without the exception's own text: it may quote the prompt or the output."""
    if isinstance(error, OverdueError):
        return f"took longer than {seconds * 1000:g} ms"
    return f"raised {type(error).__name__}"
