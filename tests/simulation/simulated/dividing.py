"""Fleets whose routers divide the decode workers, and what that must come to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tandem.wire import faces
from tandem_router.connection import UNLISTED
from tandem_router.core.story import Story
from tandem_router.core.values import Phase
from tandem_router.discovery import Listing, Share

if TYPE_CHECKING:
    from simulated.plan import Happening, Plan
    from simulated.router_process import RouterProcess

DIVIDED = 0.3
"""Of the fleets with several routers: so many divide."""
MOST_MOVES = 3
"""Routers that are replaced, or die where there are faults, beside what the plan has drawn."""
LAST_MOVE = 4.0
"""Seconds from the start; requests come as long."""


@dataclass(slots=True, frozen=True)
class Division:
    """The settings of that name, which all routers have."""

    decode_routers: int = 0
    decode_routers_from: int = 0

    def share(self, router: str) -> Share:
        return Share(
            router,
            decode_routers=self.decode_routers,
            decode_routers_from=self.decode_routers_from,
        )

    def servers(self, worker: str, phase: Phase, routers: int, decode_workers: int) -> int:
        """By how many of so many routers a worker is to be served: aggregated ones are divided as
        those of decode are.
        """
        divides = self.decode_routers and decode_workers >= self.decode_routers_from
        divided = divides and (phase is Phase.DECODE or faces.is_one(worker))
        return min(self.decode_routers, routers) if divided else routers


ALL_SERVE_ALL = Division()


def draw(source: random.Random, plan: Plan) -> None:
    """Let the routers divide, where there are several. There are more decode workers then, and
    each frontend has a stream to every router: one of them may have no decode worker of a model.
    """
    special = plan.most_failed is not None or plan.longest < math.inf or plan.fickle_router
    if plan.routers == 1 or special or source.random() >= DIVIDED:
        return
    plan.division = Division(source.choice((1, 1, 2, 3)), source.choice((0, 0, 5)))
    plan.routers, plan.most_routers = source.randint(2, 4), 8
    alone = [each for each in plan.workers if each.phase is Phase.DECODE and not each.whole]
    for model, first in {each.model: each for each in reversed(alone)}.items():
        plan.workers += [
            replace(first, address=f"decode-{model}-more-{number}:1", quirk="")
            for number in range(source.randint(0, 3))
        ]
    kinds: tuple[Happening, ...] = ("roll_router", "crash_router")
    for _ in range(source.randint(0, MOST_MOVES)):
        kind = source.choice(kinds) if plan.faulty else "roll_router"
        plan.happenings.append((source.random() * LAST_MOVE, kind))


class ShareRules:
    """Judges what one router does with the workers that are its own, and with those that were."""

    def __init__(self, division: Division, router: str, fault: Callable[[str], None]) -> None:
        self._division, self._router, self._fault = division, router, fault
        self._mine: set[str] = set()
        self.stranded: set[str] = set()
        """Traces of requests that waited in vain where no decode worker of theirs is left."""

    @contextmanager
    def taking(self, listing: Listing) -> Iterator[None]:
        """While the router takes a list, worker after worker, what was its own may be so still."""
        share = self._division.share(self._router)  # which knows nothing of the last list
        mine = set(share.of(listing.phases(), listing.routers))
        self._mine |= mine
        yield
        self._mine = mine

    def started(self, worker: str) -> None:
        if worker not in self._mine:
            self._fault(f"{worker} gets a leg, and is no longer listed or not of the share")

    def ended(self, story: Story) -> None:
        """A request has ended here."""
        mine = any(each.startswith(f"{Phase.DECODE}-{story.model}-") for each in self._mine)
        if self._division.decode_routers and story.outcome == "no_pair" and not mine:
            self.stranded.add(story.trace_id)

    def left(self, worker: str, reason: str, open_legs: int) -> None:
        """The router's stream to a worker is over; `open_legs`: those that somebody waits for."""
        if reason == UNLISTED and open_legs:
            self._fault(f"{worker} is left with {open_legs} legs open")


def uneven(
    division: Division, listing: Listing, routers: Collection[RouterProcess], *, calm: bool
) -> Iterator[str]:
    """Every worker that too few or too many of the listed routers serve, for people; in a calm
    fleet none counts that is not connected.
    """
    phases = listing.phases()
    decode_workers = sum(phase is Phase.DECODE for phase in phases.values())
    for worker, phase in phases.items():
        connections = [each.workers._connections.get(worker) for each in routers]
        serving = [
            each
            for each in connections
            if each is not None and each.is_listed and (each.connected or not calm)
        ]
        expected = division.servers(worker, phase, len(routers), decode_workers)
        if len(serving) != expected:
            yield f"{worker} is served by {len(serving)} routers instead of {expected}"
