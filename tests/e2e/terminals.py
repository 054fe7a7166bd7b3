"""A command on a terminal of its own: what it draws, which keys it is given, what it leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE = 60.0
"""Seconds that a test waits for what must come, however slow the machine is."""


class TerminalCommand:
    """A command on a terminal of its own: what it wrote, and keys for it."""

    def __init__(
        self, *words: str, program: Sequence[str] = ("-m", "tandem.cli"), **variables: str
    ) -> None:
        self._main, worker = pty.openpty()
        self.size(80, 24)
        self.before = termios.tcgetattr(worker)
        self.worker = worker
        self.process = subprocess.Popen(
            [sys.executable, *program, *words],
            stdin=worker,
            stdout=worker,
            stderr=worker,
            env={**os.environ, "TERM": "xterm-256color", **variables},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.text = ""

    def size(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def until(self, *wanted: str) -> str:
        """Read until a screen has all of these; that screen, without colours."""
        deadline = time.monotonic() + PATIENCE
        while True:
            screen = re.sub(r"\x1b\[[0-9;]*m", "", self.text.rpartition("\x1b[H")[2])
            if all(each in screen for each in wanted):
                return screen
            assert time.monotonic() < deadline, (wanted, self.text[-3000:])
            self.read(deadline)

    def end(self) -> int:
        """Its status, with all that it wrote."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text[-3000:]
            self.read(time.monotonic() + 0.1)
        self.read(time.monotonic() + 0.1)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for each in (self._main, self.worker):
            with suppress(OSError):
                os.close(each)

    def hang_up(self) -> None:
        os.close(self.worker)
        os.close(self._main)

    def read(self, deadline: float) -> None:
        ready, _, _ = select.select([self._main], (), (), max(0.0, deadline - time.monotonic()))
        if ready:
            self.text += os.read(self._main, 65536).decode(errors="replace")

    def is_as_before(self) -> bool:
        """Echo and lines, the cursor and the first screen."""
        shown, hidden = self.text.rfind("\x1b[?25h"), self.text.rfind("\x1b[?25l")
        return (
            termios.tcgetattr(self.worker) == self.before
            and self.text.rfind("\x1b[?1049l") > self.text.rfind("\x1b[?1049h") >= 0
            and shown > hidden
        )


@contextmanager
def on_terminal(*words: str, **more: Any) -> Iterator[TerminalCommand]:
    opened = TerminalCommand(*words, **more)
    try:
        yield opened
    finally:
        opened.close()
