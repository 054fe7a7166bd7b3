"""A file of an operator's that is read again when it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tandem.errors import ConfigError

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_SECONDS = 1.0
"""Between looks at a file."""
Stamp = tuple[int, int, int, int]
"""Device, inode, size and time of change."""


class WatchedFile(Generic[T]):
    """The value parsed from a file, read again when the file changes; a bad file keeps the last
    value.
    """

    def __init__(
        self,
        path: str,
        parse: Callable[[bytes, str], T],
        *,
        max_bytes: int,
        on_changed: str,
        on_failed: str,
    ) -> None:
        """`parse` makes the content of bytes, at most one more than `max_bytes`, and the file's
        name, and raises ConfigError. `on_changed`, `on_failed`: what is logged. Raises ConfigError
        where the file is of no use.
        """
        self._path = Path(path)
        self._parse = parse
        self._max_bytes = max_bytes
        self._on_changed, self._on_failed = on_changed, on_failed
        self._used = self._seen = self._stamp()
        self.content = self._read()
        self.failures = 0
        """Times that the file was found changed and of no use."""
        self._failed = False

    @property
    def stale(self) -> bool:
        """The value is older than the file: the new content is unusable, or not read yet."""
        return self._failed or self._seen != self._used

    def look(self) -> bool:
        """Read the file again once it has changed, and then stayed as it is from one look to the
        next: what is half written is nobody's. True: the content is another now.

        A file that cannot be used changes nothing.
        """
        stamp = self._stamp()
        settled, self._seen = stamp == self._seen, stamp
        if not settled or stamp == self._used:
            return False
        self._used = stamp
        try:
            content = self._read()
        except ConfigError as error:
            self.failures += 1
            self._failed = True
            log.error(self._on_failed, extra={"reason": str(error)})
            return False
        self._failed = False
        changed, self.content = content != self.content, content
        if changed:
            log.info(self._on_changed)
        return changed

    def _stamp(self) -> Stamp | None:
        try:
            seen = os.stat(self._path)
        except OSError:
            return None
        return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns

    def _read(self) -> T:
        if self._path.exists() and not self._path.is_file():
            raise ConfigError(f"{self._path} is no file")  # a pipe would be waited for
        try:
            with self._path.open("rb") as file:
                content = file.read(self._max_bytes + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {self._path}: {error.strerror}") from error
        if self._stamp() != self._used:
            raise ConfigError(f"{self._path} was replaced while it was read")
        return self._parse(content, str(self._path))
