"""Keys that ask more of one pair of workers than it can do, in virtual time, with the real core.

Sequences come by chance (Poisson) and hold their slot for a time drawn from an exponential law; no
network, no engine: what is measured is the queue alone. What a key asks for is drawn for itself: it
is the same in every run of a seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulated import submits
from tandem.endings import Outcome
from tandem_router.core import actions, events
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Bounds, Fingerprint, Phase, Profile
from tandem_router.policies import LeastLoaded

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What one key asks for, or one flow of it."""

    rate: float
    """Sequences a second."""
    hold: float = 1.0
    """Seconds that each holds a slot, in the mean."""
    weight: int = 1
    priority: int = 0
    key: str = ""
    """Of several demands the same; empty: the demand is a key of its own."""
    fairness: int = 0
    invents: bool = False
    """Each of its sequences is a flow of its own."""
    first_token_ms: int = 0


@dataclass(slots=True)
class Served:
    """What came of one demand."""

    waits: list[float] = field(default_factory=list)
    """Of each sequence that began, in seconds."""
    began: list[float] = field(default_factory=list)
    """When each did."""
    slot_seconds: float = 0.0
    refused: int = 0

    def began_between(self, first: float, last: float) -> int:
        return sum(first <= at < last for at in self.began)


class Crowd:
    """One run: `slots` slots, and keys that want them."""

    def __init__(
        self, demands: Mapping[str, Demand], *, slots: int, seed: int = 1, max_queue: int = 10_000
    ) -> None:
        self._demands, self._seed = demands, seed
        self._core = RouterCore(
            bounds=Bounds(max_queue=max_queue),
            prefill_policy=LeastLoaded,
            decode_policy=LeastLoaded,
            new_room=itertools.count(1).__next__,
        )
        self.served = {key: Served() for key in demands}
        self._agenda: list[tuple[float, int, events.Event]] = []
        self._order = itertools.count()
        self._keys: dict[int, str] = {}
        self._came: dict[int, float] = {}
        self._hold: dict[int, float] = {}
        self._legs: dict[int, list[actions.StartLeg]] = defaultdict(list)
        self._until = 0.0
        for phase in Phase:
            profile = Profile(
                name=phase.value,
                phase=phase,
                fingerprint=FINGERPRINT,
                max_sequences=slots,
                context_length=100,
            )
            up = events.WorkerUp(worker=phase.value, listed_as=phase, profile=profile)
            self._core.handle(0.0, [events.FrontendUp(1), up][phase is Phase.DECODE :])

    def run(self, seconds: float) -> Mapping[str, Served]:
        self._until = seconds
        for key, demand in self._demands.items():
            self.add(key, demand, after=0.0, until=seconds)
        while self._agenda and self._agenda[0][0] < seconds:
            at, _, event = heapq.heappop(self._agenda)
            self._take(at, self._core.handle(at, [event]))
        return self.served

    def add(self, key: str, demand: Demand, *, after: float, until: float) -> None:
        """What a key asks for in some time."""
        at, source = after, random.Random(f"{key} {self._seed}")
        while (at := at + source.expovariate(demand.rate)) < until:
            self._arrive(at, source.expovariate(1 / demand.hold), key, demand)

    def _arrive(self, at: float, hold: float, key: str, demand: Demand) -> None:
        number = len(self._keys) + 1
        self._keys[number], self._came[number], self._hold[number] = key, at, hold
        submit = submits.submit(
            number,
            timeout_seconds=1e6,
            task=b"",
            tenant=demand.key or key,
            weight=demand.weight,
            priority=demand.priority,
            fairness=number if demand.invents else demand.fairness,
            first_token_ms=demand.first_token_ms,
        )
        self._later(at, submit)

    def _take(self, now: float, done: Sequence[actions.Action]) -> None:
        for action in done:
            if isinstance(action, actions.StartLeg):
                self._start(now, action)
            elif isinstance(action, actions.EndSequence):
                self.served[self._keys[action.sequence]].refused += 1

    def _start(self, now: float, leg: actions.StartLeg) -> None:
        legs = self._legs[leg.command.sequence]
        legs.append(leg)
        if len(legs) == 2:
            hold = self._hold[leg.command.sequence]
            served = self.served[self._keys[leg.command.sequence]]
            served.began.append(now)
            served.waits.append(now - self._came[leg.command.sequence])
            served.slot_seconds += min(hold, self._until - now)
            for each in legs:
                closed = events.LegClosed(each.worker, each.leg, Outcome.FINISHED)
                self._later(now + hold, closed)

    def _later(self, at: float, event: events.Event) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), event))
