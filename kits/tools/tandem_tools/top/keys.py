"""Keys of a terminal, its new sizes and suspensions as events; the terminal is left as it was."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RESIZE, SUSPEND, QUIT = "resize", "suspend", "q"
MOST_BYTES = 1024
"""Bytes read at once of typed or pasted text."""
_NAMES = {
    **{f"\x1b{start}{end}": name for start in "[O" for end, name in zip(
        "ABHF", ("up", "down", "home", "end"), strict=True
    )},
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "k": "up",
    "j": "down",
    "g": "home",
    "G": "end",
    "\x04": QUIT,
}  # fmt: skip
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)
_SIGNALS = {signal.SIGWINCH: RESIZE, signal.SIGTSTP: SUSPEND}
_WAKE = b"\0"


class Keyboard:
    """Events of standard input, of signals, and of other threads. In a process's main thread.

    Where standard input is no terminal there are no keys.
    """

    def __init__(self) -> None:
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._input: int | None = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._closing = threading.Lock()
        self._closed = False

    def __enter__(self) -> Keyboard:
        return self

    def __exit__(self, *_: object) -> None:
        with self._closing:
            self._closed = True
            os.close(self._woken)
            os.close(self._wake)

    def wake(self) -> None:
        """End the wait, from any thread."""
        with self._closing, suppress(BlockingIOError):
            if not self._closed:
                os.write(self._wake, _WAKE)

    def events(self) -> list[str]:
        """Wait for any, or for `wake`; then all that there are: names of keys, RESIZE, SUSPEND."""
        sources = [self._woken, *((self._input,) if self._input is not None else ())]
        ready, _, _ = select.select(sources, (), ())
        found = []
        if self._woken in ready:
            numbers = os.read(self._woken, MOST_BYTES)
            found += [_SIGNALS[signal.Signals(each)] for each in numbers if each in _SIGNALS]
        if self._input in ready:
            found += self._typed()
        return found

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keys come one by one, without echo; the end restores the terminal's settings."""
        before = termios.tcgetattr(self._input) if self._input is not None else None
        handlers = {each: signal.signal(each, lambda *_: None) for each in _SIGNALS}
        wakeup = signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        try:
            if self._input is not None:
                tty.setcbreak(self._input, termios.TCSANOW)
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if before is not None:
                with suppress(termios.error):  # the terminal has gone
                    termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)

    def _typed(self) -> list[str]:
        assert self._input is not None
        try:
            typed = os.read(self._input, MOST_BYTES)
        except OSError:
            typed = b""
        if not typed:
            self._input = None
            return [QUIT]
        return [_NAMES.get(each, each) for each in _KEY.findall(typed.decode(errors="replace"))]
