"""How far a target has come: on disk, so that a run goes on where one has ended, in any way."""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

_HEAD = struct.Struct("<QQ")
_MOST_BYTES = 1 << 24


@dataclass(slots=True)
class Progress:
    seed: int
    done: int = 0
    """Inputs."""
    seconds: float = 0.0
    longest_ms: float = 0.0

    @staticmethod
    def load(folder: Path, seed: int) -> Progress:
        """Of another seed nothing is kept."""
        path = folder / "progress.json"
        kept = Progress(**json.loads(path.read_text())) if path.exists() else Progress(seed)
        return kept if kept.seed == seed else Progress(seed)

    def save(self, folder: Path) -> None:
        path = folder / "progress.json.new"
        path.write_text(json.dumps(asdict(self)))
        path.rename(folder / "progress.json")


class Current:
    """The input that is being given, in a file that outlives the process."""

    def __init__(self, folder: Path) -> None:
        path = folder / "current"
        if not path.exists():
            path.write_bytes(_HEAD.pack(0, 0))
        with path.open("r+b") as file:
            file.truncate(_HEAD.size + _MOST_BYTES)
            self._map = mmap.mmap(file.fileno(), 0)

    def set(self, number: int, data: bytes) -> None:
        data = data[:_MOST_BYTES]
        self._map[: _HEAD.size] = _HEAD.pack(number, len(data))
        self._map[_HEAD.size : _HEAD.size + len(data)] = data

    def get(self) -> tuple[int, bytes]:
        number, size = _HEAD.unpack(self._map[: _HEAD.size])
        return number, self._map[_HEAD.size : _HEAD.size + size]
