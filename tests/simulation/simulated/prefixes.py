"""Prompts that begin alike, and the caches of scripted engines.

The simulation's prompts are four tokens, so a block is one token there: `BLOCK`. What follows from
a request's number follows without a draw.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from tandem.engine.prefix_log import PrefixLog
from tandem.prefix_blocks import Blocks, unpacked
from tandem.v1 import worker_pb2

BLOCK = 1
MOST_CACHED = 8
"""Blocks that an engine's cache holds."""
_KINDS = 3
_MOST_BLOCKS = 4


def blocks_of(number: int) -> tuple[int, ...]:
    """Those of a request's prompts: some begin alike, some have none."""
    first = 100 * (number % _KINDS + 1)
    shared = range(first, first + number // _KINDS % _MOST_BLOCKS)
    return (*shared, 10**6 + number) if number % 5 else tuple(shared)


def session_of(number: int) -> str:
    """The session that a request belongs to; empty: it has none."""
    return f"session {number % 4}" if number % 3 == 0 else ""


class ScriptedCache:
    """A prefill engine's. Some say nothing of theirs, some have none, and some lose all of it or
    keep nothing of a prompt, now and then.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self.log = PrefixLog(keeps=self._random.random() < 0.9)
        self.told: PrefixLog | None = self.log if self._random.random() < 0.8 else None
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, blocks: Blocks) -> None:
        """A prompt was computed."""
        chance = self._random.random()
        if not self.log.keeps or chance < 0.1:
            return
        if chance < 0.15:
            self._blocks.clear()
            self.log.clear()
        for each in reversed(blocks):
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        self.log.enter(blocks)
        over = len(self._blocks) - MOST_CACHED
        self.log.leave([self._blocks.popitem(last=False)[0] for _ in range(over)])


@dataclass(slots=True)
class _Hope:
    """A leg that was sent blocks."""

    blocks: tuple[int, ...]
    over_at: float | None = None
    """From then on a report must tell of them; None: the leg is open."""


@dataclass(slots=True)
class CacheBook:
    """What may be in a worker's cache, and what surely is, as far as its router was told."""

    told: set[int] = field(default_factory=set)
    tells: bool = False
    keeps: bool = True
    hopes: dict[int, _Hope] = field(default_factory=dict)

    def report(self, changes: worker_pb2.CacheChanges, now: float) -> None:
        self.keeps = not changes.keeps_none
        if changes.anew or changes.keeps_none:
            self.told.clear()
        self.told -= set(unpacked(changes.left))
        self.told |= set(unpacked(changes.entered))
        self.tells = True
        for leg, hope in list(self.hopes.items()):
            if hope.over_at is not None and hope.over_at <= now:
                del self.hopes[leg]

    def closed(self, leg: int, now: float) -> None:
        """A leg is over: what it was to bring is told soon, or is not there. Of a worker that says
        nothing it is believed.
        """
        if self.tells and (hope := self.hopes.get(leg)):
            hope.over_at = now + 1.0

    def start(
        self,
        leg: int,
        blocks: Iterable[int],
        tokens: int,
        booked: int | None,
        fault: Callable[[str], object],
        *,
        block: int = BLOCK,
        forgets: bool = False,
    ) -> int:
        """Judge what a leg is booked as, and return it. `forgets`: the router's index is small."""
        mine = tuple(blocks)
        maybe = set(self.told) if self.keeps else set()
        for hope in self.hopes.values() if self.keeps else ():
            maybe.update(hope.blocks)
        surely = 0
        while not forgets and surely < len(mine) and mine[surely] in self.told:
            surely += 1
        deepest = max((n for n, each in enumerate(mine, 1) if each in maybe), default=0)
        low, high = (max(tokens - block * n, min(tokens, 1)) for n in (deepest, surely))
        if booked is None or not low <= booked <= high:
            fault(f"leg {leg} is booked as {booked} tokens, which are {low} to {high}")
        self.hopes[leg] = _Hope(mine)
        return tokens if booked is None else booked
