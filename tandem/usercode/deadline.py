"""Stops user code that takes too long, where it runs in the process's main thread.

A signal interrupts its Python code, its sleeps and its blocking reads. Code that runs in C without
looking for signals (one enormous regular expression, a held lock) is not reached: hooks that may do
such a thing belong in the pool, whose processes can be killed.

The watching thread is not woken for each call: it sleeps for a timeout's length, and looks then
whether the call that is in progress is overdue. A call costs three assignments.
"""

from __future__ import annotations

import math
import signal
import threading
from time import perf_counter
from types import FrameType
from typing import Protocol

AGAIN_SECONDS = 0.1
_SIGNAL = signal.SIGRTMIN + 8
"""Nobody else's: SIGALRM belongs to whoever sets an alarm."""


class OverdueError(BaseException):
    """Raised inside user code at its timeout. Not an Exception, so that its own `except Exception`
    does not swallow it.
    """


class Limited(Protocol):
    """Who made a call whose time seems to be over."""

    def overdue_at(self) -> float:
        """When it really is, by perf_counter: later, where the call had to wait for others."""


class Watch:
    """The one call of user code that this process's main thread is in, if it is in one."""

    def __init__(self) -> None:
        self.due = 0.0
        """When the call is overdue, by perf_counter. Whoever made the call sets it to 0 when it has
        returned or raised.
        """
        self.caller: Limited | None = None
        """Who made the call."""
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
        if not due or due > perf_counter():
            return
        later = -math.inf if self.caller is None else self.caller.overdue_at()
        if later > perf_counter():
            self._postpone(later)
            return
        self._postpone(perf_counter() + AGAIN_SECONDS)  # should the call swallow this one
        raise OverdueError

    def _postpone(self, due: float) -> None:
        self.due = due
        if due < self.next_look:
            self.look_at(due)


WATCH = Watch()
