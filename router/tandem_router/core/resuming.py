"""What is kept of a sequence that is to be resumed, and when it cannot be.

Where a decode worker is lost, another pair goes on from what its engine had made. All that was
shown comes once more, since only the frontend knows how far that had come: it compares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tandem.byte_budget import Allotment
from tandem.errors import QueueFullError, TandemError, WorkerLostError
from tandem.message_limits import MAX_MADE_BYTES
from tandem_router.core.events import LegMade

_NOT_RESUMED = "; not resumed: "
NOT_SAID = "its worker does not say what it makes"
NO_MEMORY = "the router has no memory for what its worker made"
TWICE = "it was resumed before"
TOO_LONG = "what its worker made is too long"
NO_PAIR = "no other pair of workers takes it"
SUSPECT = "the worker may have been lost by its fault"


@dataclass(slots=True, eq=False)
class Made:
    """What the engine of one sequence's decode leg has made so far."""

    steps: bytearray = field(default_factory=bytearray)
    tokens: int = 0
    over: bool = False
    """The client has its end: nothing is left to be done."""
    obstacle: str = ""
    """Why it cannot be resumed, as far as is known yet."""
    used: bool = False
    """Whether the sequence was resumed, or tried to be."""

    @property
    def may_serve(self) -> bool:
        """Whether the sequence may yet be resumed from it."""
        return not (self.obstacle or self.used or self.over)

    def add(self, said: LegMade, allotment: Allotment) -> bool:
        """Take in what a worker says. `allotment`: the request's. Returns whether it may yet
        serve.
        """
        self.over, self.obstacle = said.over, said.obstacle
        try:
            allotment.admit(len(said.steps))
            self.steps += said.steps
            self.tokens += said.tokens
        except QueueFullError:
            self.obstacle = NO_MEMORY
        if len(self.steps) > MAX_MADE_BYTES:
            self.obstacle = TOO_LONG
        serves = self.may_serve
        if not serves:
            self.forget(allotment)
        return serves

    def forget(self, allotment: Allotment) -> None:
        """Nothing is kept any more."""
        allotment.give_back(len(self.steps))
        self.steps, self.tokens = bytearray(), 0


def unresumed(error: TandemError, obstacle: str) -> TandemError:
    """What a sequence ends with that was to be resumed and is not."""
    what = error.message.partition(_NOT_RESUMED)[0]
    return WorkerLostError(f"{what}{_NOT_RESUMED}{obstacle}")
