"""What is fuzzed: valid inputs, how they are spoilt, and what they are given to."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, Protocol

ROOT = Path(__file__).resolve().parents[3]
MODEL_PATH = ROOT / "model" / "tandem-tiny"
MODEL = "tandem-tiny"

Kind = Literal["5xx", "fault", "crash", "hang", "leak"]
KINDS: tuple[Kind, ...] = ("5xx", "fault", "crash", "hang", "leak")
_MOST_SPOILS = 4
_MOST_BYTES = 16 * 2**20
"""A change that makes an input larger is left out: no frontend takes such a body."""
_LARGE_BYTES = 256 * 2**10
"""What has become so large is not changed again: some changes make it a hundred times larger, and
take as long.
"""


class FoundError(Exception):
    """An input did what none may."""

    def __init__(self, kind: Kind, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class Subject(Protocol):
    """What inputs are given to, one after the other."""

    async def give(self, data: bytes) -> None:
        """Raises FoundError, or whatever escapes."""
        ...

    async def left_open(self) -> int:
        """Requests, legs or connections that no input may leave behind."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One edge of the product."""

    name: str
    goal: int
    """Inputs of a full run."""
    corpus: Callable[[], Sequence[bytes]]
    """Valid inputs."""
    spoil: Callable[[bytes, Random], bytes]
    """One change to an input."""
    subject: Callable[[], AbstractContextManager[Subject]]

    def spoilt(self, data: bytes, random: Random) -> bytes:
        """A few changes, most often one."""
        for _ in range(min(random.choice((1, 1, 1, 2, 3, 8)), _MOST_SPOILS)):
            if len(data) > _LARGE_BYTES:
                break
            changed = self.spoil(data, random)
            if len(changed) > _MOST_BYTES:
                break
            data = changed
        return data

    def input(self, seed: int, number: int, corpus: Sequence[bytes]) -> bytes:
        """The input of that number. What it is depends on nothing else."""
        random = Random(zlib.crc32(f"{self.name}:{number}".encode()) << 32 | seed)
        return self.spoilt(random.choice(corpus), random)
