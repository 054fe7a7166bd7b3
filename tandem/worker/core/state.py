"""Everything that the worker's core holds of its legs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec

from tandem.byte_budget import ByteBudget
from tandem.worker.core.effects import Effects
from tandem.worker.core.ledger import Ledger
from tandem.worker.core.leg import Leg
from tandem.worker.core.outgoing import Outgoing
from tandem.worker.core.rules import PhaseRules

P = ParamSpec("P")


@dataclass(slots=True, eq=False)
class CoreState:
    rules: PhaseRules
    worker: str
    """The worker's name, for reports."""
    budget: ByteBudget
    """All bytes that the worker holds."""
    effects: Effects
    ledger: Ledger
    now: float = 0.0
    """The time of the event that is being handled."""
    asked: list[partial[None]] = field(default_factory=list)
    """Calls of `effects` that the event has led to, so far."""
    links: dict[int, Outgoing] = field(default_factory=dict)
    """What waits for each router whose stream is open."""
    open: dict[int, Leg] = field(default_factory=dict)
    """Open legs by their request_id."""
    numbers: dict[tuple[int, int], Leg] = field(default_factory=dict)
    """Open legs by link and the router's number."""
    groups: dict[tuple[int, int, int], list[Leg]] = field(default_factory=dict)
    """Open legs of each request."""
    too_large: list[Leg] = field(default_factory=list)
    """Legs to be ended once the event is taken in: the engine may have let go of them in it."""

    def ask(self, effect: Callable[P, None], *args: P.args, **options: P.kwargs) -> None:
        """Have one of the `effects` called once the event is taken in."""
        self.asked.append(partial(effect, *args, **options))
