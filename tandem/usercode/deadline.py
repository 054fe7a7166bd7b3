"""Stops user code that takes too long, where it runs in the process's main thread.

A signal interrupts its Python code, its sleeps and its blocking reads. Code that runs
in C without looking for signals (one enormous regular expression, a held lock) is not reached:
hooks that may do such a thing belong in the pool, whose processes can be killed.

The watching thread is not woken for each call: it sleeps for a timeout's length, and looks then
whether the call that is in progress is overdue. A call costs two assignments.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

AGAIN_SECONDS = 0.1
_SIGNAL = signal.SIGRTMIN + 8
"""Nobody else's: SIGALRM belongs to whoever sets an alarm."""


class OverdueError(BaseException):
    """Raised inside a hook at its timeout. Not an Exception, so that a hook's own `except
    Exception` does not swallow it.
    """


class Watch:
    """The one call of a hook that this process's main thread is in, if it is in one."""

    def __init__(self) -> None:
        self.due = 0.0
        """When the call is overdue, by perf_counter. Whoever made the call sets it to 0 when it has
        returned or raised.
        """
        self.next_look = -math.inf
        """When the thread looks next; infinite: it sleeps until it is woken. Minus infinite: there
        is no thread.
        """
        self._main = 0
        self._wake = threading.Event()

    def install(self) -> None:
        """Begin to watch. In another thread than the main one: no effect, and a late call is found
        out when it returns.
        """
        if self._main or threading.current_thread() is not threading.main_thread():
            return
        self._main = threading.main_thread().ident or 0
        signal.signal(_SIGNAL, self._interrupt)
        self.next_look = math.inf
        threading.Thread(target=self._watch, name="hook-watch", daemon=True).start()

    def enter(self, began: float, timeout: float) -> None:
        """A call begins; both times are seconds."""
        self.due = due = began + timeout
        if due < self.next_look:
            self.look_at(due)

    def look_at(self, due: float) -> None:
        """Wake the thread, so that it looks no later than `due`."""
        self.next_look = due
        self._wake.set()

    def _watch(self) -> None:
        while True:
            left = self.next_look - perf_counter()
            if left > 0:
                self._wake.wait(None if left == math.inf else left)
                self._wake.clear()
                continue
            self.next_look = math.inf  # before `due` is read, or a call that begins now is missed
            due = self.due
            if due > perf_counter():
                self.next_look = due
            elif due:
                signal.pthread_kill(self._main, _SIGNAL)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        due = self.due
        if due and due <= perf_counter():
            self.enter(perf_counter(), AGAIN_SECONDS)  # should the hook swallow this one
            raise OverdueError


WATCH = Watch()


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
        """CPU seconds since then: at least so much."""
        return thread_time() - self._cpu - (began - self._started)
