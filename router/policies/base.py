"""The seam for choosing a worker: without I/O, and told only of workers that may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar


class Prompt(NamedTuple):
    """What is known of the request that a worker is chosen for."""

    tokens: int
    """How long its prompt is; where workers are to tokenise it, the most that it can be."""
    tenant: str
    """The name of the client's key; empty: none was asked."""


class Candidate(Protocol):
    """A worker with a free slot, to look at."""

    @property
    def key(self) -> str:
        """Its address, which no other has."""
        ...

    @property
    def cost(self) -> float:
        """Its load. Prefill: the prompt tokens of its open legs for each of its slots. Decode: the
        share of its slots that is taken, or of its KV cache where that is more.
        """
        ...

    @property
    def open_legs(self) -> int:
        """Those of other routers included, as of its last report."""
        ...

    @property
    def free(self) -> int:
        """Legs that it can take now."""
        ...


AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)
Draw = Callable[[int], int]
"""Gives a number below its argument, each as likely."""
SomeCandidate = TypeVar("SomeCandidate", bound=Candidate, covariant=True)


class Candidates(Protocol[SomeCandidate]):
    """At least one worker, in orders that are kept: to take the first costs the same however many
    there are.
    """

    def __contains__(self, found: object) -> bool:
        """Whether it is one of them."""
        ...

    @property
    def shared(self) -> bool:
        """Whether legs of other routers run on any of them, as far as they have reported."""
        ...

    def by_load(self) -> Iterator[SomeCandidate]:
        """From the smallest cost; of equals by address."""
        ...

    def by_address(self, after: str = "") -> Iterator[SomeCandidate]:
        """From the first that comes after that address, and round to it."""
        ...

    def two_at_random(self, draw: Draw) -> tuple[SomeCandidate, SomeCandidate]:
        """Any two of them, each as likely; the same twice where there is but one."""
        ...


class Policy(Protocol):
    """One instance serves one choice (say, the prefill workers of one model) and may keep state."""

    def choose(self, candidates: Candidates[AnyCandidate], prompt: Prompt) -> AnyCandidate:
        """One of `candidates`. What goes through all of them makes each request cost more the more
        workers there are.
        """
        ...


PolicyFactory = Callable[[], Policy]
