"""What each key was given in each line, as an outsider reckons it: whose turn it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from simulated.router_books import Line, SequenceBook


@dataclass(slots=True)
class LineShares:
    given: dict[str, float] = field(default_factory=dict)
    """Seconds of slots by weight, of each key that waits, runs, or was given more than others."""
    running: dict[str, int] = field(default_factory=dict)
    weight: dict[str, int] = field(default_factory=dict)
    level: float = 0.0
    """What whoever began last had been given before."""


class Shares:
    """Told of each sequence that begins to wait, begins to run, or leaves its slots."""

    def __init__(self, waiting: Callable[[Line], list[SequenceBook]]) -> None:
        """`waiting`: the sequences that wait in a line now."""
        self._waiting = waiting
        self._lines: dict[Line, LineShares] = {}

    def turn(self, sequence: SequenceBook) -> tuple[int, float, int]:
        """Who comes first: by priority, by what their keys were given, by arrival."""
        submit, shares = sequence.request.submit, self._of(sequence)
        key = submit.tenant
        share = shares.given[key] + shares.running.get(key, 0) / shares.weight[key]
        return -submit.priority, share, sequence.arrival

    def waits(self, sequence: SequenceBook) -> None:
        """To be told before it is among those that wait."""
        key, shares = sequence.request.submit.tenant, self._of(sequence)
        shares.weight[key] = sequence.request.submit.weight
        others = {each.request.submit.tenant for each in self._waiting_with(sequence)}
        if key not in others:
            least = min([shares.level, *(shares.given[other] for other in others)])
            shares.given[key] = max(shares.given.get(key, 0.0), least)

    def begins(self, sequence: SequenceBook) -> None:
        """To be told after it is no longer among those that wait."""
        submit, shares = sequence.request.submit, self._of(sequence)
        shares.level = shares.given[submit.tenant]
        shares.running[submit.tenant] = shares.running.get(submit.tenant, 0) + 1

    def settled(self, sequence: SequenceBook, seconds: float) -> None:
        submit, shares = sequence.request.submit, self._of(sequence)
        shares.given[submit.tenant] += seconds / submit.weight
        shares.running[submit.tenant] -= 1
        self.rests(sequence)

    def rests(self, sequence: SequenceBook) -> None:
        """A key that neither waits nor runs is forgotten, unless it was given more than others."""
        key, shares = sequence.request.submit.tenant, self._of(sequence)
        waits = any(each.request.submit.tenant == key for each in self._waiting_with(sequence))
        if not waits and not shares.running.get(key) and shares.given[key] <= shares.level:
            del shares.given[key]

    def _of(self, sequence: SequenceBook) -> LineShares:
        return self._lines.setdefault(sequence.request.line, LineShares())

    def _waiting_with(self, sequence: SequenceBook) -> list[SequenceBook]:
        return self._waiting(sequence.request.line)
