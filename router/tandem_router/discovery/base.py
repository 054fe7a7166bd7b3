"""The seam of discovery: whole lists of workers and routers, and how fresh they are."""

from __future__ import annotations

import enum
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from tandem.wire import faces
from tandem_router.core.values import Phase


@dataclass(slots=True, frozen=True)
class Listed:
    address: str
    phase: Phase


def listed(address: str, phase: Phase | None) -> tuple[Listed, ...]:
    """What is at an address: a worker of a phase, or with None both of an aggregated worker's."""
    if phase is not None:
        return (Listed(address, phase),)
    return tuple(Listed(faces.key(address, each), each) for each in Phase)


@dataclass(slots=True, frozen=True)
class Listing:
    """All that a source names at one time."""

    workers: tuple[Listed, ...] = ()
    routers: frozenset[str] = frozenset()
    """Addresses of the routers that take requests; none where nobody asks for them."""

    def phases(self) -> dict[str, Phase]:
        """Each worker's, by address. An address under both phases counts as the first of them."""
        found: dict[str, Phase] = {}
        for each in self.workers:
            found.setdefault(each.address, each.phase)
        return found


class Trouble(enum.StrEnum):
    """Why discovery learned nothing; a label of metrics."""

    UNREACHABLE = "unreachable"
    """No connection, a broken one, or one that fell silent."""
    FORBIDDEN = "forbidden"
    """The router may not read what it must: a matter of RBAC or of its token."""
    EXPIRED = "expired"
    """The watch was too far behind (410); it begins with a new list, and nothing is missed."""
    ANSWER = "answer"
    """An answer that says something else than it should."""
    LOOKUP = "lookup"
    """A name was not resolved."""


class Watchkeeper:
    """When discovery last heard from its source, and how often it did not. Written by one thread,
    read by any.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.errors = dict.fromkeys(Trouble, 0)
        self._clock = clock
        self._heard_at = clock()

    def heard(self) -> None:
        self._heard_at = self._clock()

    def failed(self, trouble: Trouble) -> None:
        self.errors[trouble] += 1

    def age_seconds(self) -> float:
        """Since the source was last heard; before the first time, since the start."""
        return self._clock() - self._heard_at


class Discovery(Protocol):
    @property
    def keeper(self) -> Watchkeeper: ...

    def listings(self) -> AsyncGenerator[Listing]:
        """The whole list once it is known, and again whenever it changes; ends when it can change
        no more. A source that is away changes nothing. Close it: it may own a thread.
        """
