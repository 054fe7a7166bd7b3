"""The seam for choosing a worker: without I/O, and told only of workers that may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A worker with a free slot."""

    @property
    def key(self) -> str:
        """Its address, which no other has."""
        ...

    @property
    def cost(self) -> float:
        """The share of its slots that is taken."""
        ...


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)
Draw = Callable[[int], int]
"""Gives a number below its argument, each as likely."""
SomeCandidate = TypeVar("SomeCandidate", bound=Candidate, covariant=True)


class Candidates(Protocol[SomeCandidate]):
    """At least one worker, in orders that are kept: to take the first costs the same however many
    there are.
    """

    @property
    def shared(self) -> bool:
        """Whether legs of other routers run on any of them, as far as they have reported."""
        ...

    def by_load(self) -> Iterator[SomeCandidate]:
        """From the smallest share of slots that is taken; of equals by address."""
        ...

    def by_address(self, after: str = "") -> Iterator[SomeCandidate]:
        """From the first that comes after that address, and round to it."""
        ...

    def two_at_random(self, draw: Draw) -> tuple[SomeCandidate, SomeCandidate]:
        """Any two of them, each as likely; the same twice where there is but one."""
        ...


class Policy(Protocol):
    """One instance serves one choice (say, the prefill workers of one model) and may keep state."""

    def choose(self, candidates: Candidates[AnyCandidate]) -> AnyCandidate:
        """One of `candidates`. What goes through all of them makes each request cost more the more
        workers there are.
        """
        ...
