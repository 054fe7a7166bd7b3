"""A connected worker, as the core knows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.core.record import Record
from router.core.values import Phase, Profile, Standing

if TYPE_CHECKING:
    from router.core.group import Side

_WHOLE = Standing.WHOLE


@dataclass(slots=True, eq=False)
class Worker:
    """A connected worker. A reconnected one is another Worker."""

    key: str
    listed_as: Phase
    profile: Profile
    draining: bool
    legs: set[int] = field(default_factory=set)
    """Numbers of its open legs; a slot is free again only when its leg has closed."""
    overdue: int = 0
    """Legs that it has not closed in time after a cancel; each keeps its slot."""
    other_legs: int = 0
    """Legs of other routers, by its last report; a start that is on its way may hide one."""
    paired: bool = False
    """It has been told that a pair uses it."""
    died: bool = False
    """Its engine has died. What it is still sent does not begin."""
    stalled: bool = False
    """Its engine has work and makes no step."""
    given_up: bool = False
    """Its stream is to be closed for that."""
    unproved: str = ""
    """Why it has to be proved by a canary first, for people; empty: KV has moved."""
    record: Record = field(default_factory=Record)
    """How its address has done lately; the Fleet's, so that it outlives the stream."""
    side: Side | None = None
    """Where it takes work; None: it takes none, or is gone. The Fleet's `update` says which."""

    @property
    def phase(self) -> Phase:
        return self.profile.phase

    @property
    def open_legs(self) -> int:
        """Open legs, those of other routers included."""
        return len(self.legs) + self.other_legs

    @property
    def capacity(self) -> int:
        return self.profile.max_sequences

    @property
    def free(self) -> int:
        """Legs that it can take now."""
        free = self.profile.max_sequences - len(self.legs) - self.other_legs
        if self.record.standing is not _WHOLE:
            free = min(free, 0 if self.record.probe else 1)
        return free if free > 0 else 0

    @property
    def cost(self) -> float:
        """The share of its slots that is taken, as it is told of candidates."""
        return (len(self.legs) + self.other_legs) / self.profile.max_sequences

    @property
    def usable(self) -> bool:
        """It takes new work, unless it is ejected."""
        return self.fit and not self.unproved

    @property
    def fit(self) -> bool:
        """It could take new work, if it were proved and not ejected."""
        return not (self.draining or self.stalled or self.defect())

    def take(self, leg: int) -> None:
        """A leg is started on it; on probation it has to prove itself with that one."""
        self.legs.add(leg)
        if self.record.standing is Standing.PROBATION:
            self.record.probe = leg

    def fill(self) -> None:
        """It has said that it is full: others have what we do not, until it reports again."""
        self.other_legs = max(self.other_legs, self.capacity - len(self.legs))

    @property
    def ejected(self) -> bool:
        return self.record.standing is Standing.EJECTED

    def withheld(self) -> str:
        """Why it is given nothing new at present, for people; empty: it is."""
        if self.draining:
            return "it is draining"
        if self.stalled:
            return "its engine has work and makes no step"
        if self.ejected:
            failed, ended = self.record.failed, self.record.ended
            return f"it is ejected: {failed} of the last {ended} legs failed there"
        return ""

    def defect(self) -> str:
        """Why no pair can ever use it ("phase" or "limits"); empty: a pair can."""
        if self.phase is not self.listed_as:
            return "phase"
        return "" if self.capacity > 0 else "limits"


def defect_text(worker: Worker, defect: str) -> str:
    """What `Worker.defect` says, for people."""
    if defect == "phase":
        return f"it is a {worker.phase} worker, listed as {worker.listed_as}"
    return "it takes no sequences: max_sequences is 0"


def difference_text(worker: Worker, other: Worker, name: str) -> str:
    """In what field two workers differ, for people. What they say there is cut where it is long."""
    mine = getattr(worker.profile.fingerprint, name)
    theirs = getattr(other.profile.fingerprint, name)
    return f"{name} is {mine!r:.100}, but {theirs!r:.100} on {other.phase} worker {other.key}"
