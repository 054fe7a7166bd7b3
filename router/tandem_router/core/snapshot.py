"""What metrics and people read of the core: plain values of one moment, which nothing changes.

Whoever reads from another thread has it taken on the event loop, between two events.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

from tandem_router.core.lost_hits import LostHits
from tandem_router.core.state import State
from tandem_router.core.values import Counts, Phase, Standing


class TrustSnapshot(NamedTuple):
    """How a worker's address has done."""

    reputation: Standing
    """WHOLE, EJECTED or PROBATION."""
    failed: int
    """Legs that failed there lately, by the worker's own doing."""
    ended: int
    """Legs that failed, and legs that ended well."""
    failures: int
    """Since the router's start, as `ejections` and `faults`."""
    ejections: int
    faults: int
    """Messages of the worker that this router could not read."""


UNKNOWN = TrustSnapshot(Standing.WHOLE, 0, 0, 0, 0, 0)
"""An address that this router has met no worker at."""


class WorkerSnapshot(NamedTuple):
    """A connected worker, as it is now."""

    address: str
    phase: Phase
    routable: bool
    """Whether some pair uses the worker."""
    open_legs: int
    """Legs of this router, which take a slot each."""
    other_legs: int
    """Legs of other routers, by the worker's last report."""
    slots: int
    overdue_legs: int
    stalled: bool
    """Whether the worker's engine has work and makes no step."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Snapshot:
    counts: Counts
    """A copy, made for this snapshot."""
    queue_length: int
    queue_limit: int
    open_sequences: int
    frontends: int
    draining: bool
    ready_pairs: int
    """Matching pairs that take work, over all editions."""
    workers: tuple[WorkerSnapshot, ...]
    trusts: dict[str, TrustSnapshot]
    """By address, of workers that are connected or were not long ago."""
    sessions: int
    """Sessions whose last prefill worker is remembered."""
    lost_hits: tuple[LostHits, ...]
    """The last sessions that lost some, the latest first."""


def take(state: State) -> Snapshot:
    fleet = state.fleet
    return Snapshot(
        counts=copy.deepcopy(state.counts),
        queue_length=len(state.waiting),
        queue_limit=state.bounds.max_queue,
        open_sequences=state.open_sequences,
        frontends=len(state.frontends),
        draining=state.draining,
        ready_pairs=sum(each.ready_pairs for each in fleet.editions.values()),
        workers=tuple(
            WorkerSnapshot(
                address=worker.key,
                phase=worker.phase,
                routable=fleet.uses(worker),
                open_legs=len(worker.legs),
                other_legs=worker.other_legs,
                slots=worker.capacity,
                overdue_legs=worker.overdue,
                stalled=worker.trust.stalled,
            )
            for worker in fleet.workers.values()
        ),
        trusts={
            key: TrustSnapshot(
                reputation=each.reputation,
                failed=each.failed,
                ended=each.ended,
                failures=each.failures,
                ejections=each.ejections,
                faults=each.faults,
            )
            for key, each in fleet.trusts.items()
        },
        sessions=fleet.prefixes.sessions,
        lost_hits=state.lost_hits.told(),
    )
