"""A folder that a model is fetched into, perhaps by several pods at once.

DIR/config.json, ...        the model, each file whole or absent
DIR/.tandem-model.json      the marker: written last, so the model is whole where it is
DIR/.tandem-model.lock      held while somebody fetches
DIR/.cache/                 what a fetch works with; kept when it fails, to go on from there
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

MARKER = ".tandem-model.json"
LOCK = ".tandem-model.lock"
WORK = ".cache"
POLL_SECONDS = 1.0
STALE_SECONDS = 3600.0
"""A partial file that nobody has written to for so long belongs to a process that was killed."""


class FetchError(Exception):
    """The model cannot be fetched. The message says what to do, and holds no token."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that is asked for. Equal sources give the same files."""

    uri: str
    revision: str = ""
    only_tokenizer: bool = False
    lora: bool = False
    """Whether the folder holds a LoRA adapter."""

    def __str__(self) -> str:
        return f"{self.uri}@{self.revision}" if self.revision else self.uri


@dataclass(frozen=True, slots=True)
class Marker:
    """The record of a folder that is complete. `files` maps a name to its size in bytes."""

    source: ModelSource
    commit: str = ""
    files: Mapping[str, int] = field(default_factory=dict)


class ModelFolder:
    """Raises FetchError where the volume refuses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / WORK

    def holds(self, source: ModelSource) -> Marker | None:
        """The marker where the folder holds this model, whole. Nothing is written: the folder may
        be read-only. Raises FetchError where it holds another model.
        """
        try:
            content = json.loads((self.path / MARKER).read_text(encoding="utf-8"))
            marker = Marker(ModelSource(**content["source"]), content["commit"], content["files"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FetchError(f"cannot read {self.path / MARKER}: {error}") from error
        there = marker.source
        if (there.uri, there.revision) != (source.uri, source.revision):
            raise FetchError(f"{self.path} holds {there}: fetch {source} into another folder")
        whole = all(self.has(name, size) for name, size in marker.files.items())
        enough = source.only_tokenizer or not there.only_tokenizer
        return marker if whole and enough else None

    def has(self, name: str, size: int) -> bool:
        try:
            return (self.path / name).stat().st_size == size
        except OSError:
            return False

    def written(self) -> int:
        """Bytes that the volume holds for this folder, of files that are not whole too."""
        found = 0
        for root, _, names in os.walk(self.path):
            for name in names:
                with suppress(OSError):  # renamed meanwhile
                    status = os.stat(os.path.join(root, name))
                    found += min(status.st_size, status.st_blocks * 512)  # some are sparse
        return found

    def check_space(self, files: Mapping[str, int]) -> int:
        """Returns how many bytes are missing. Raises FetchError where they would not fit."""
        missing = sum(size for name, size in files.items() if not self.has(name, size))
        free = shutil.disk_usage(self.path).free
        if missing > free:
            raise FetchError(
                f"{self.path} has {free / 1e9:.2f} GB free, and {missing / 1e9:.2f} GB are "
                "missing: use a larger volume"
            )
        return missing

    def finish(self, marker: Marker) -> None:
        """Raises FetchError where a file is not whole."""
        for name, size in marker.files.items():
            if not self.has(name, size):
                raise FetchError(f"{self.path / name} has not its {size:,} bytes: fetch it again")
        text = json.dumps(asdict(marker), indent=1)
        temporary = self.path / f"{MARKER}.{secrets.token_hex(4)}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path / MARKER)
        shutil.rmtree(self.work, ignore_errors=True)

    @contextmanager
    def locked(self, *, wait_seconds: float, waiting: Callable[[float], None]) -> Iterator[None]:
        """Let only one process fetch. The kernel frees the lock of one that is killed. `waiting` is
        told for how long this one has waited.
        """
        self.work.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("a") as file:
            began = time.monotonic()
            while not _lock(file.fileno()):
                waited = time.monotonic() - began
                if waited > wait_seconds:
                    raise FetchError(f"another process fetches into {self.path} for {waited:.0f} s")
                waiting(waited)
                time.sleep(POLL_SECONDS)
            self._remove_stale()
            yield

    def _remove_stale(self) -> None:
        oldest = time.time() - STALE_SECONDS
        for partial in self.work.rglob("*.incomplete"):
            if partial.stat().st_mtime < oldest:
                partial.unlink(missing_ok=True)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
