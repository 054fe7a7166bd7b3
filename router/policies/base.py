"""The seam for choosing a worker: pure, deterministic, told only of workers that may be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A worker with a free slot."""

    @property
    def key(self) -> str:
        """Its address, which no other has."""
        ...


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)
SomeCandidate = TypeVar("SomeCandidate", bound=Candidate, covariant=True)


class Candidates(Protocol[SomeCandidate]):
    """At least one worker, in orders that are kept: to take the first costs the same however many
    there are.
    """

    def by_load(self) -> Iterator[SomeCandidate]:
        """From the smallest share of slots that is taken; of equals by address."""
        ...

    def by_address(self, after: str = "") -> Iterator[SomeCandidate]:
        """From the first that comes after that address, and round to it."""
        ...


class Policy(Protocol):
    """One instance serves one choice (say, the prefill workers of one model) and may keep state."""

    def choose(self, candidates: Candidates[AnyCandidate]) -> AnyCandidate:
        """One of `candidates`. What goes through all of them makes each request cost more the more
        workers there are.
        """
        ...
