"""A file of lines that is rotated by size, and that several processes may write at once."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path

MODE = 0o600
LOCK_SECONDS = 1.0
_POLL_SECONDS = 0.005
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


class RotatedFile:
    """`path`, and behind it `path.1`, the newest, to `path.<files - 1>`.

    Whoever writes or rotates holds a lock on the current file. All methods raise OSError.
    """

    def __init__(self, path: Path, *, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files
        self._fd = -1

    def open(self) -> None:
        """Open or create the current file, for its owner's eyes alone."""
        self.close()
        fd = os.open(self._path, _FLAGS, MODE)
        try:
            _make_private(fd)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd

    def append(self, lines: deque[bytes]) -> None:
        """Write them in order; each is removed once it is written. A line is in one file as a
        whole, and no file grows beyond its bound, unless one line does.
        """
        while lines:
            with self._locked() as size:
                count = self._fitting(lines, size)
                if count:
                    self._write(b"".join(islice(lines, count)), size)
                else:
                    self._shift()
            if not count:
                self.open()
            for _ in range(count):
                lines.popleft()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The current file, no other process writing; gives its size. Raises TimeoutError."""
        deadline = time.monotonic() + LOCK_SECONDS
        while not self._lock():
            if time.monotonic() > deadline:
                raise TimeoutError(0, "another process holds the lock")
            time.sleep(_POLL_SECONDS)
        try:
            yield os.fstat(self._fd).st_size
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock(self) -> bool:
        if self._fd < 0:
            self.open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with suppress(FileNotFoundError):  # moved away: as if another file were there
            if os.path.samestat(os.fstat(self._fd), os.stat(self._path)):
                return True
        self.open()  # another process has rotated meanwhile
        return False

    def _fitting(self, lines: deque[bytes], size: int) -> int:
        """How many of the first lines the current file takes."""
        for count, line in enumerate(lines):
            size += len(line)
            if size > self._max_bytes and size > len(line):
                return count
        return len(lines)

    def _write(self, data: bytes, size: int) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            with suppress(OSError):  # what matters is the error that brought us here
                os.ftruncate(self._fd, size)  # no half lines
            raise

    def _shift(self) -> None:
        """Make room for a new current file."""
        names = [str(self._path), *(f"{self._path}.{number}" for number in range(1, self._files))]
        for newer, older in reversed(list(pairwise(names))):
            with suppress(FileNotFoundError):
                os.replace(newer, older)
        if self._files == 1:
            os.unlink(self._path)


def _make_private(fd: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is no regular file")
    if stat.S_IMODE(found.st_mode) != MODE:
        os.fchmod(fd, MODE)
