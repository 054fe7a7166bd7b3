"""The audit log as a worker sees it: `record` queues, a thread writes, nothing waits for a disk."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from pathlib import Path

from tandem.errors import ConfigError, HookError
from tandem.hooks.audit.file import RotatedFile
from tandem.hooks.audit.line import Decided, Renderer
from tandem.hooks.audit.settings import AuditSettings

log = logging.getLogger(__name__)

MAX_RECORDS = 10_000
"""Records that wait to be written, at most."""
MAX_CHARACTERS = 16_777_216
"""Characters of text that these refer to, at most."""
BATCH = 128
"""Records to a write: so the writer keeps the interpreter for itself well below a millisecond."""
GATHER_SECONDS = 0.05
RETRY_SECONDS = 1.0
COMPLAIN_SECONDS = 60.0
CLOSE_SECONDS = 5.0
KEY_BYTES = 16
_PASSES = ("emit", "shadow:emit")


class AuditLog:
    """Writes down what hooks and classifiers decided. `record` is called by one thread.

    What the disk refuses waits in the bounded queue and is tried again. Processes may share a file:
    prefill and decode, or the workers of a pool.
    """

    def __init__(self, settings: AuditSettings, *, worker: str, model: str) -> None:
        """Raises ConfigError where the key cannot be read."""
        self.written = self.dropped = self.errors = 0
        """Lines written; records lost; writes that the disk refused."""
        self._settings = settings
        self._renderer = Renderer(settings.content, _key(settings), worker=worker, model=model)
        self._file = RotatedFile(
            Path(settings.path), max_bytes=settings.max_bytes, files=settings.files
        )
        self._queue: deque[Decided] = deque()
        self._taken = 0  # characters ever queued: only `record` writes it
        self._rendered = 0  # those of them that are no longer in the queue: only the thread does
        self._lines: deque[bytes] = deque()
        self._lost = 0  # of `dropped`: said in the log itself
        self._complained: dict[str, float] = {}
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_all, name="audit", daemon=True)

    def start(self) -> None:
        """Open the file and begin. Raises ConfigError where it cannot be opened."""
        path = self._settings.path
        try:
            self._file.open()
        except OSError as error:
            raise ConfigError(f"audit.path: cannot write {path}: {error.strerror}") from error
        if self._settings.content == "full":
            log.warning("audit.content is full: the audit log holds what hooks withheld")
        self._thread.start()

    def wants(self, decision: str) -> bool:
        """Whether it is written down at all."""
        return self._settings.passes or decision not in _PASSES

    def record(self, decided: Decided) -> None:
        """Queue one decision. Raises HookError where the queue is full and `on_full` is fail."""
        if not self.wants(decided.decision):
            return
        size = decided.characters()
        if (
            len(self._queue) >= MAX_RECORDS
            or self._taken - self._rendered + size > MAX_CHARACTERS
            or self._closing.is_set()
        ):
            self._refuse()
            return
        self._taken += size
        self._queue.append(decided)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write what is queued, for at most CLOSE_SECONDS; what is left is counted as dropped. The
        second time: no effect.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        if lost := len(self._lines) + len(self._queue):
            self.dropped += lost
            log.error("audit records were lost at shutdown", extra={"count": lost})

    def _refuse(self) -> None:
        if self._settings.on_full == "fail":
            raise HookError("the audit log takes no more records")
        self.dropped += 1

    def _write_all(self) -> None:
        """The thread that writes what is queued, until it is stopped."""
        pause = GATHER_SECONDS
        closing = False
        while not closing:
            self._wake.wait(RETRY_SECONDS)
            closing = self._closing.wait(pause)
            self._wake.clear()
            pause = GATHER_SECONDS if self._write_queue() else RETRY_SECONDS
        self._file.close()

    def _write_queue(self) -> bool:
        """False: the disk refused; what was to be written is kept."""
        while self._lines or self._queue:
            if not self._lines:
                self._render()
            waiting = len(self._lines)
            try:
                self._file.append(self._lines)
            except OSError as error:
                self.errors += 1
                self._complain("the audit log cannot be written", reason=error.strerror)
                return False
            finally:
                self.written += waiting - len(self._lines)
        return True

    def _render(self) -> None:
        for _ in range(min(len(self._queue), BATCH)):
            decided = self._queue.popleft()
            self._rendered += decided.characters()
            self._lines.append(self._renderer.line(decided))
        if lost := self.dropped - self._lost:
            self._lost += lost
            self._lines.append(self._renderer.lost(time.time(), lost))
            self._complain("audit records were lost: the queue was full", count=lost)

    def _complain(self, what: str, **fields: object) -> None:
        """Log it, at most once a minute."""
        now = time.monotonic()
        if now - self._complained.get(what, -COMPLAIN_SECONDS) >= COMPLAIN_SECONDS:
            self._complained[what] = now
            log.error(what, extra=fields)


def _key(settings: AuditSettings) -> bytes:
    if not settings.key_file:
        return secrets.token_bytes(32)
    try:
        key = Path(settings.key_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"audit.key_file: cannot read {settings.key_file}: {error.strerror}"
        ) from error
    if len(key) < KEY_BYTES:
        raise ConfigError(f"audit.key_file: the key must have at least {KEY_BYTES} bytes")
    return key
