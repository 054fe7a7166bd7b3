"""The seam for choosing a worker: pure, deterministic, told only of workers that may be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A worker with a free slot."""

    @property
    def key(self) -> str:
        """Its address: unique, and the order of candidates."""
        ...

    @property
    def open_legs(self) -> int: ...

    @property
    def capacity(self) -> int:
        """Legs open at once, at least 1."""
        ...


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)


class Policy(Protocol):
    """One instance serves one choice (say, the prefill workers of one model) and may keep state."""

    def choose(self, candidates: Sequence[AnyCandidate]) -> AnyCandidate:
        """One of `candidates`, which is not empty and is sorted by key."""
        ...
