"""Log files of components: their last lines, and what is written to them from then on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 2**20
"""Bytes of a log that are read at once, and of its last lines that are shown."""
_BREAKS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Controls but the tab: engines write progress bars, which move a terminal's cursor."""


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a file, at most `count`, within its last MOST_BYTES. Raises OSError."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - MOST_BYTES))
        lines = _lines(file.read(MOST_BYTES))
    return lines[-count:] if count else []


class LogFollower:
    """Reads what is written to one log file."""

    def __init__(self, log: Path) -> None:
        """Begins at the file's end. Raises OSError."""
        self._log = log
        self._place = log.stat().st_size
        self._begun = b""
        """The beginning of a line that has not ended yet."""

    def new_lines(self) -> Iterator[str]:
        """The lines that were written since the last call, at most MOST_BYTES of them. A file that
        became shorter was begun anew: it is read from its beginning. Raises OSError.
        """
        with self._log.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._place:
                self._place, self._begun = 0, b""
            file.seek(self._place)
            written = self._begun + file.read(MOST_BYTES)
            self._place = file.tell()
        whole, _, self._begun = written.rpartition(b"\n")
        if len(self._begun) > MOST_BYTES:  # a line without an end is shown in pieces
            whole, self._begun = written, b""
        yield from _lines(whole)


def _lines(written: bytes) -> list[str]:
    text = written.decode(errors="replace")
    return [_BREAKS.sub("", line) for line in re.split(r"\r?\n", text.rstrip("\n"))] if text else []
