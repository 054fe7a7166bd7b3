"""Everything the core holds.

tests/simulation/simulated/router_invariants.py says what must be true of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.byte_budget import ByteBudget
from tandem.errors import TandemError
from tandem_router.core.actions import Action
from tandem_router.core.fleet import Fleet
from tandem_router.core.lost_hits import LostHitsOfSessions
from tandem_router.core.sequences import Leg, Request, Sequence
from tandem_router.core.stories import Traces
from tandem_router.core.story import Rejected
from tandem_router.core.timers import Timers
from tandem_router.core.values import Bounds, Counts
from tandem_router.core.waiting import Waiting
from tandem_router.core.worker import Worker


@dataclass(slots=True)
class State:
    bounds: Bounds
    fleet: Fleet
    budget: ByteBudget = field(default_factory=ByteBudget)
    """All that the router holds takes of it: here, requests for their tasks."""
    waiting: Waiting = field(default_factory=Waiting)
    frontends: dict[int, dict[int, Request]] = field(default_factory=dict)
    """Open requests of each connected frontend by the number of each of their sequences."""
    traces: Traces = field(default_factory=Traces)
    legs: dict[int, Leg] = field(default_factory=dict)
    """Open legs, those of ended sequences included."""
    canaries: dict[Worker, Sequence] = field(default_factory=dict)
    """Canaries by the worker that they try, until canary and leg have ended."""
    rooms: set[int] = field(default_factory=set)
    """Rooms of open legs."""
    deadlines: Timers[Request] = field(default_factory=Timers)
    settling: Timers[Leg] = field(default_factory=Timers)
    counts: Counts = field(default_factory=Counts)
    lost_hits: LostHitsOfSessions = field(default_factory=LostHitsOfSessions)
    open_sequences: int = 0
    draining: bool = False
    now: float = 0.0
    """The time of the event that is being handled."""
    actions: list[Action] = field(default_factory=list)
    """Actions that the event has led to, so far."""
    queued: list[Sequence] = field(default_factory=list)
    """Sequences that have come into the queue since it was last looked at."""
    unfit_workers: dict[str, tuple[float, Rejected]] = field(default_factory=dict)
    """By model, what stories were last told of workers that would not do, and when."""
    may_start: bool = False
    """A worker that had no free slot has one, or something else is next in a queue."""
    ended_canaries: list[tuple[Sequence, TandemError | None]] = field(default_factory=list)
    """Canaries that have ended, with their errors; canaries.py has not taken them in yet."""
    canary_legs_over: list[Worker] = field(default_factory=list)
    """Workers of canaries' legs that have closed, or are overdue, likewise."""
