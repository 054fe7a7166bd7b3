"""The core's conduct, judged from outside: only from the events that went in and the actions that
came out.

It keeps its own books, so a fault in the core's state cannot hide itself. For tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import singledispatchmethod

from router_invariants import InvariantError

from router.core import actions, events
from router.core.actions import Action
from router.core.events import Event
from router.core.values import Bounds, Outcome, Phase, Profile
from tandem.errors import DrainingError, QueueFullError

Key = tuple[int, int]
"""A frontend and its number of a sequence."""


@dataclass(slots=True)
class _Leg:
    worker: str
    phase: Phase
    sequence: Key
    room: int
    held: bool
    cancelled_at: float | None = None


@dataclass(slots=True)
class _Open:
    """A sequence that has not ended."""

    first: int
    deadline: float
    started: bool = False
    attempts: int = 0
    """Since the start, or the last regeneration."""
    regenerations: int = 0


@dataclass(slots=True)
class Ledger:
    """Call `observe` after each Core.handle, with what went in and what came out: one event at a
    time, and none for the time alone, because what is due comes before an event.
    """

    bounds: Bounds
    open: dict[Key, _Open] = field(default_factory=dict)
    legs: dict[int, _Leg] = field(default_factory=dict)
    workers: dict[str, Profile] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    """Legs of other routers on a worker, by its last report."""
    paired: set[str] = field(default_factory=set)
    ended: int = 0
    _frontends: set[int] = field(default_factory=set)
    _rooms: dict[int, Key] = field(default_factory=dict)
    _last_leg: int = 0
    _broken: list[str] = field(default_factory=list)

    def observe(self, now: float, batch: Iterable[Event], done: Iterable[Action]) -> None:
        """Raises InvariantError with every rule that the actions break."""
        self._broken = []
        for event in batch:
            self._take(event, now)
        for action in done:
            self._judge(action, now)
        self._at_rest(now)
        if self._broken:
            raise InvariantError("; ".join(self._broken))

    def _fault(self, text: str) -> None:
        self._broken.append(text)

    def _at_rest(self, now: float) -> None:
        """What must hold once the actions of one event are carried out."""
        running = {leg.sequence for leg in self.legs.values()}
        for key, sequence in self.open.items():
            if sequence.deadline <= now:
                self._fault(f"sequence {key} is open after its deadline")
        if sum(key not in running for key in self.open) > self.bounds.max_queue:
            self._fault("more sequences wait than the queue may hold")
        for number, leg in self.legs.items():
            if leg.sequence not in self.open and leg.cancelled_at is None:
                self._fault(f"leg {number} of an ended sequence is not cancelled")

    # --- what happened ---------------------------------------------------------------------------

    @singledispatchmethod
    def _take(self, event: Event, now: float) -> None:
        """Events that change no book."""

    @_take.register
    def _(self, event: events.FrontendUp, now: float) -> None:
        self._frontends.add(event.frontend)

    @_take.register
    def _(self, event: events.FrontendDown, now: float) -> None:
        self._frontends.discard(event.frontend)
        for key in [key for key in self.open if key[0] == event.frontend]:
            self._end(key)

    @_take.register
    def _(self, event: events.Submit, now: float) -> None:
        for index in range(event.n):
            key = event.frontend, event.first_sequence + index
            self.open[key] = _Open(event.first_sequence, now + event.timeout_seconds)

    @_take.register
    def _(self, event: events.WorkerUp, now: float) -> None:
        self._lose(event.worker)
        self.workers[event.worker] = event.profile

    @_take.register
    def _(self, event: events.WorkerDown, now: float) -> None:
        self._lose(event.worker)
        self.workers.pop(event.worker, None)

    @_take.register
    def _(self, event: events.WorkerLoad, now: float) -> None:
        self.others[event.worker] = max(0, event.open_legs - self._own_legs(event.worker))

    @_take.register
    def _(self, event: events.LegStarted, now: float) -> None:
        leg = self.legs.get(event.leg)
        if leg is not None and leg.worker == event.worker and leg.phase is Phase.DECODE:
            sequence = self.open.get(leg.sequence)
            if sequence is not None and leg.cancelled_at is None:
                sequence.started = True

    @_take.register
    def _(self, event: events.LegClosed, now: float) -> None:
        leg = self.legs.get(event.leg)
        if leg is None or leg.worker != event.worker:
            return
        del self.legs[event.leg]
        if isinstance(event.error, QueueFullError):
            own = self._own_legs(event.worker)
            self.others[event.worker] = self.workers[event.worker].max_sequences - own
        shown = event.outcome in (Outcome.FINISHED, Outcome.TERMINATED) and not leg.held
        running = leg.cancelled_at is None and leg.sequence in self.open
        if leg.phase is Phase.DECODE and shown and running:
            self._end(leg.sequence)  # through its payload
        if leg.phase is Phase.DECODE and event.outcome is Outcome.REGENERATE and running:
            sequence = self.open[leg.sequence]
            sequence.started, sequence.attempts = False, 0
            sequence.regenerations += 1
        untried = isinstance(event.error, QueueFullError | DrainingError) and event.retryable
        if untried and running and not self.open[leg.sequence].started:
            self.open[leg.sequence].attempts -= 1

    def _lose(self, worker: str) -> None:
        for number in [number for number, leg in self.legs.items() if leg.worker == worker]:
            del self.legs[number]
        self.others.pop(worker, None)
        self.paired.discard(worker)

    def _own_legs(self, worker: str) -> int:
        return sum(leg.worker == worker for leg in self.legs.values())

    def _end(self, key: Key) -> None:
        del self.open[key]
        self.ended += 1

    # --- what the core did -----------------------------------------------------------------------

    @singledispatchmethod
    def _judge(self, action: Action, now: float) -> None:
        """Actions that no rule speaks of."""

    @_judge.register
    def _(self, action: actions.EndSequence, now: float) -> None:
        key = action.frontend, action.sequence
        if key not in self.open:
            self._fault(f"sequence {key} is ended twice, or never was")
        else:
            self._end(key)
        if action.frontend not in self._frontends:
            self._fault(f"frontend {action.frontend} is gone and is told of {key}")

    @_judge.register
    def _(self, action: actions.RefuseFrontend, now: float) -> None:
        self._take(events.FrontendDown(action.frontend), now)

    @_judge.register
    def _(self, action: actions.StartLeg, now: float) -> None:
        key = action.frontend, action.sequence
        profile = self.workers.get(action.worker)
        if profile is None:
            self._fault(f"leg {action.leg} is started on {action.worker}, which is lost")
            return
        if action.leg <= self._last_leg:
            self._fault(f"leg number {action.leg} is used twice")
        self._last_leg = action.leg
        leg = _Leg(action.worker, profile.phase, key, action.room, action.hold_output)
        self._start_rules(action, leg, profile)
        self.legs[action.leg] = leg
        busy = self._own_legs(action.worker) + self.others.get(action.worker, 0)
        if busy > profile.max_sequences:
            self._fault(f"{action.worker} has {busy} legs, over its {profile.max_sequences}")

    def _start_rules(self, action: actions.StartLeg, leg: _Leg, profile: Profile) -> None:
        sequence = self.open.get(leg.sequence)
        if sequence is None:
            self._fault(f"leg {action.leg} is started for a sequence that is not open")
            return
        if leg.phase is Phase.PREFILL:
            sequence.attempts += 1
            if sequence.started or sequence.attempts > 1 + self.bounds.max_retries:
                self._fault(f"sequence {leg.sequence} is tried again after it was shown, or often")
            if sequence.regenerations > self.bounds.max_regenerations:
                self._fault(f"sequence {leg.sequence} is regenerated too often")
        for number, other in self.legs.items():
            if other.sequence == leg.sequence and other.room != leg.room:
                self._fault(f"a retry starts before leg {number} of the old attempt is closed")
            if other.sequence == leg.sequence and other.phase is Phase.PREFILL:
                theirs = self.workers[other.worker].fingerprint
                if theirs != profile.fingerprint:
                    self._fault(f"{other.worker} and {action.worker} are paired and differ")
        if action.room == 0 or self._rooms.setdefault(action.room, leg.sequence) != leg.sequence:
            self._fault(f"room {action.room} is used twice")

    @_judge.register
    def _(self, action: actions.WorkerPaired, now: float) -> None:
        if action.worker not in self.workers or action.worker in self.paired:
            self._fault(f"{action.worker} is told twice that it is paired, or is lost")
        self.paired.add(action.worker)

    @_judge.register
    def _(self, action: actions.ReleaseLeg, now: float) -> None:
        leg = self.legs.get(action.leg)
        if leg is None or not leg.held or leg.sequence not in self.open:
            self._fault(f"leg {action.leg} is released and is not held, or has ended")
        else:
            leg.held = False

    @_judge.register
    def _(self, action: actions.CancelLeg, now: float) -> None:
        leg = self.legs.get(action.leg)
        if leg is None or leg.cancelled_at is not None or leg.worker != action.worker:
            self._fault(f"leg {action.leg} is cancelled twice, or is closed")
        else:
            leg.cancelled_at = now
