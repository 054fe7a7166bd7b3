"""What the command line shows: words and tables for people, the result for a program, and one live
line while something is awaited. Colours, and rewriting, only on a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import TextIO

import msgspec

from tandem import config

_BOLD, _DIM, _RED, _GREEN, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m"
_CLEAR = "\r\x1b[2K"
PLAIN_SECONDS = 10.0
"""Without a terminal a live line is repeated this often."""


class Console:
    """Writes words to standard output, and with `json` to standard error, so that standard output
    has results alone. NO_COLOR takes the colours away.
    """

    def __init__(
        self, stream: TextIO | None = None, *, terminal: bool | None = None, json: bool = False
    ) -> None:
        """`stream`: takes all words, the live line too. `terminal`: whether the stream is one;
        None: asks the stream.
        """
        self._results = sys.stdout if json else None
        self._stream = stream or (sys.stderr if json else sys.stdout)
        self._live_stream = stream or sys.stderr
        on_terminal = self._stream.isatty() if terminal is None else terminal
        self._rewrites = self._live_stream.isatty() if terminal is None else terminal
        self._colour = on_terminal and not config.environment().get("NO_COLOR")
        self._live = ""
        self._live_at = 0.0

    def result(self, value: object) -> bool:
        """Write what the command found as a line of JSON, where a program asked for JSON. Returns
        whether one did, for words that only say the same.
        """
        if self._results is None:
            return False
        self.clear()
        self._results.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
        self._results.flush()
        return True

    def line(self, text: str = "") -> None:
        self.clear()
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        """Text as it is, shown at once: for an answer that streams."""
        self._stream.write(text)
        self._stream.flush()

    def live(self, what: str, seconds: float, *, share: float | None = None) -> None:
        """One line of standard error that is rewritten while something is awaited. `share`: how
        much of it is done in these seconds, by which the rest is estimated. Where standard error is
        no terminal, a line comes every PLAIN_SECONDS, and, without a share, when what is awaited
        changes.
        """
        left = seconds * (1 - share) / share if share else 0.0
        told = what if not share else f"{what}, {share:.0%}, about {left:.0f} s left"
        if self._rewrites:
            self._live = what
            self._write_live(f"{_CLEAR}  {self.dim(f'{seconds:4.0f} s')}  {told}")
            return
        now = time.monotonic()
        long = seconds >= PLAIN_SECONDS and now - self._live_at >= PLAIN_SECONDS
        if long or (share is None and what != self._live):
            self._live, self._live_at = what, now
            self._write_live(f"  {seconds:4.0f} s  {told}\n")

    def clear(self) -> None:
        """End the live line, leaving nothing of it on a terminal."""
        if self._live and self._rewrites:
            self._write_live(_CLEAR)
            self._live = ""

    def done(self, text: str, seconds: float | None = None) -> None:
        took = "" if seconds is None else self.dim(f"  {seconds:.1f} s")
        self.line(f"{self.good('ok')}  {text}{took}")

    def failed(self, text: str) -> None:
        self.line(f"{self.bad('!!')}  {text}")

    def table(self, rows: Iterable[Sequence[str]], *, head: Sequence[str] = ()) -> None:
        """Columns as wide as their widest cell."""
        body = [tuple(row) for row in rows]
        everything = [tuple(head), *body] if head else body
        if not everything:
            return
        widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
        for index, row in enumerate(everything):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            first = self.dim(cells[0])
            text = "  ".join([first, *cells[1:]]).rstrip()
            self.line(f"  {self.bold('  '.join(cells).rstrip()) if head and not index else text}")

    def bold(self, text: str) -> str:
        return self._paint(_BOLD, text)

    def dim(self, text: str) -> str:
        return self._paint(_DIM, text)

    def good(self, text: str) -> str:
        return self._paint(_GREEN, text)

    def bad(self, text: str) -> str:
        return self._paint(_RED, text)

    def _write_live(self, text: str) -> None:
        self._live_stream.write(text)
        self._live_stream.flush()

    def _paint(self, code: str, text: str) -> str:
        return f"{code}{text}{_RESET}" if self._colour else text
