"""What each key was given in each line, as an outsider reckons it: whose turn it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from simulated.router_books import Line, SequenceBook

Flow = tuple[str, int, int]
"""The key, priority and fairness of what takes turns within its key."""


@dataclass(slots=True)
class LineShares:
    given: dict[str, float] = field(default_factory=dict)
    """Seconds of slots by weight, of each key that waits, runs, or was given more than others."""
    running: dict[str, int] = field(default_factory=dict)
    weight: dict[str, int] = field(default_factory=dict)
    level: float = 0.0
    """What whoever began last had been given before."""
    turns: dict[Flow, int] = field(default_factory=dict)
    """When each flow began to wait for its turn, counted in such beginnings."""
    begun_turns: int = 0


class Shares:
    """Told of each sequence that begins to wait, begins to run, or leaves its slots."""

    def __init__(self, waiting: Callable[[Line], list[SequenceBook]]) -> None:
        """`waiting`: the sequences that wait in a line now."""
        self._waiting = waiting
        self._lines: dict[Line, LineShares] = {}
        self._has_flows = False
        """A request has said for whom it is, or when its first token is due."""

    def turn(self, sequence: SequenceBook) -> tuple[int, float, int, int]:
        """Who comes first: by priority, by what their keys were given, by arrival; of one key by
        the turns of its flows. Of keys that were given as much the first of each are compared.
        """
        submit, shares = sequence.request.submit, self._of(sequence)
        key = submit.tenant
        share = shares.given[key] + shares.running.get(key, 0) / shares.weight[key]
        until = self._until(sequence) if self._has_flows else [sequence]
        return -submit.priority, share, max(each.arrival for each in until), len(until)

    def _until(self, sequence: SequenceBook) -> list[SequenceBook]:
        """Of a key and a priority what comes before a sequence, and the sequence: by the turn of
        its flow, when it is due, arrival.
        """
        turns, mine = self._of(sequence).turns, _flow(sequence)[:2]

        def place(each: SequenceBook) -> tuple[int, float, int]:
            ms = each.request.submit.first_token_ms
            due = each.request.arrived + ms / 1000 if ms else inf
            return turns[_flow(each)], due, each.arrival

        like = [each for each in self._waiting_with(sequence) if _flow(each)[:2] == mine]
        before = [each for each in like if place(each) < place(sequence)]
        return [*before, sequence]

    def _begin_turn(self, sequence: SequenceBook) -> None:
        shares = self._of(sequence)
        shares.begun_turns += 1
        shares.turns[_flow(sequence)] = shares.begun_turns

    def waits(self, sequence: SequenceBook) -> None:
        """To be told before it is among those that wait."""
        key, shares = sequence.request.submit.tenant, self._of(sequence)
        shares.weight[key] = sequence.request.submit.weight
        waiting = self._waiting_with(sequence)
        if _flow(sequence) not in map(_flow, waiting):
            self._begin_turn(sequence)
        submit = sequence.request.submit
        self._has_flows = self._has_flows or bool(submit.fairness or submit.first_token_ms)
        others = {each.request.submit.tenant for each in waiting}
        if key not in others:
            least = min([shares.level, *(shares.given[other] for other in others)])
            shares.given[key] = max(shares.given.get(key, 0.0), least)

    def begins(self, sequence: SequenceBook) -> None:
        """To be told after it is no longer among those that wait."""
        submit, shares = sequence.request.submit, self._of(sequence)
        shares.level = shares.given[submit.tenant]
        shares.running[submit.tenant] = shares.running.get(submit.tenant, 0) + 1
        self._begin_turn(sequence)

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


def _flow(sequence: SequenceBook) -> Flow:
    submit = sequence.request.submit
    return submit.tenant, submit.priority, submit.fairness
