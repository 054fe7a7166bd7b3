"""The workers that have a free slot, in the two orders that policies ask for: by load, by address.

An Index holds each worker as it was when it was last put in. So whatever changes a worker's slots
puts it in again (`Fleet.place`); tests and the simulation compare the indexes with the workers
after every event.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from tandem_router.core.prefixes import HeldPrefixes, depth_in
from tandem_router.core.trust import LAST_RANK
from tandem_router.core.worker import Worker
from tandem_router.policies.base import Draw, Prompt

_KEY = attrgetter("key")
_WORKER = attrgetter("worker")


class Kind(NamedTuple):
    """What a free worker is preferred or left out for."""

    overdue: bool
    """Whether the worker has not closed legs in time: it comes after those that have."""
    parks: bool
    has_hook: bool
    aggregated: bool = False


class Entry(NamedTuple):
    """Compared by cost, and then by address, which no two workers share."""

    cost: float
    key: str
    slots: int
    """Legs that the worker can take."""
    shared: bool
    """By its last report the worker runs legs of other routers."""
    worker: Worker


class Index:
    """The workers with a free slot of one kind: alike for every choice but that of a policy."""

    def __init__(self, kind: Kind, prefixes: HeldPrefixes | None = None) -> None:
        """`prefixes`: what workers hold; None: of these nothing is known."""
        self.kind = kind
        self.prefixes = prefixes
        self.slots = 0
        """How many legs all of them can take."""
        self.shared = 0
        """How many of them other routers use too."""
        self._entries: dict[str, Entry] = {}
        self.by_load: list[Entry] = []
        """From the smallest cost; of equals by address. Nobody else changes it."""
        self._by_address: list[str] = []
        self.alone = FreeWorkers((self,))
        """All of these and no others, to choose from."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, worker: Worker) -> bool:
        return worker.index is self

    def put(self, worker: Worker, slots: int) -> None:
        """Hold a worker as it is now, with its free slots, whether or not it is held already."""
        key, shared = worker.key, worker.other_legs > 0
        worker.cost = worker.load()
        entry = Entry(worker.cost, key, slots, shared, worker)
        old = self._entries.get(key)
        if old is None:
            worker.index = self
            insort(self._by_address, key)
        elif old == entry:
            return
        else:
            self._drop(old)
        self._entries[key] = entry
        insort(self.by_load, entry)
        self.slots += slots
        self.shared += shared

    def remove(self, worker: Worker) -> None:
        """Forget a worker, which must be held."""
        worker.index = None
        self._drop(self._entries.pop(worker.key))
        del self._by_address[bisect_left(self._by_address, worker.key)]

    def by_address(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """Entries of the workers at some positions of that order."""
        addresses = self._by_address
        positions = range(first, len(addresses) if last is None else last)
        return (self._entries[addresses[each]] for each in positions)

    def position(self, after: str) -> int:
        """Where in the order of addresses the first worker is that comes after one."""
        return bisect_right(self._by_address, after)

    def _drop(self, entry: Entry) -> None:
        self.slots -= entry.slots
        self.shared -= entry.shared
        del self.by_load[bisect_left(self.by_load, entry)]


class FreeWorkers:
    """What a policy chooses from, as Candidates of policies/base.py says: workers of some indexes,
    but for a few.

    After a failure (`again`) only those of the least `retry_rank` are left: where legs have ended
    well lately, or else where none has ended, or else all.
    """

    def __init__(
        self, indexes: Sequence[Index], without: Collection[Worker] = (), *, again: bool = False
    ) -> None:
        self._indexes = indexes
        self._without = (
            [each for each in without if any(each in index for index in indexes)] if without else ()
        )
        self._again = again
        plain = len(indexes) == 1 and not (self._without or again)
        self._only = indexes[0] if plain else None
        """The index that alone has every candidate in its order; None: several indexes do."""

    def __len__(self) -> int:
        return self._count() - len(self._without)

    def __contains__(self, found: object) -> bool:
        if type(found) is not Worker:
            return False
        if self._only is not None:
            return found in self._only
        if found in self._without:
            return False
        if self._again and found.trust.retry_rank > next(self.by_load()).trust.retry_rank:
            return False
        return any(found in index for index in self._indexes)

    @property
    def shared(self) -> bool:
        if self._only is not None:
            return self._only.shared > 0
        return any(each.shared for each in self._indexes)

    def by_load(self) -> Iterator[Worker]:
        return map(_WORKER, self.entries_by_load())

    def entries_by_load(self) -> Iterator[Entry]:
        """`by_load`, with the cost of each."""
        if self._only is not None:
            return iter(self._only.by_load)
        return self._in_turn(lambda: _merged([iter(each.by_load) for each in self._indexes]))

    def by_address(self, after: str = "") -> Iterator[Worker]:
        def entries() -> Iterator[Entry]:
            parts = [index.by_address(index.position(after)) for index in self._indexes]
            yield from _merged(parts, key=_KEY)
            parts = [index.by_address(0, index.position(after)) for index in self._indexes]
            yield from _merged(parts, key=_KEY)

        return map(_WORKER, self._in_turn(entries))

    def holding(self, prompt: Prompt, most: int) -> Sequence[Worker]:
        index, only = self._indexes[0], self._only
        if index.prefixes is None:
            return ()
        found: dict[Worker, None] = {}
        aggregated = index.kind.aggregated
        for holders in index.prefixes.holders(prompt.blocks, most, aggregated=aggregated):
            for each in holders:
                if each in self if only is None else each.index is only:
                    found[each] = None
                    if len(found) == most:
                        return [*found]
        return [*found]

    def holding_most(self, prompt: Prompt, most: int) -> Sequence[Worker]:
        blocks, count = prompt.blocks, 0
        found: list[Worker] = []
        for each in self.holding(prompt, most):
            held = each.holdings.blocks
            if count < len(blocks) and blocks[count] in held:
                count, found = depth_in(blocks, held), [each]
            elif count and blocks[count - 1] in held:
                found.append(each)
        return found

    def last_of(self, session: int) -> Worker | None:
        prefixes = self._indexes[0].prefixes
        found = None if prefixes is None else prefixes.last_of(session)
        return found if found in self else None

    def last_sibling(self, request: int) -> Worker | None:
        return self.last_of(-request)

    def two_at_random(self, draw: Draw) -> tuple[Worker, Worker]:
        count = self._count()
        # After a failure, which is rare, the first by load.
        if self._without or self._again or count == 1:
            first = next(self.by_load())
            return first, first
        one, other = draw(count), draw(count - 1)
        other += other >= one
        if self._only is None:
            return self._at(one), self._at(other)
        by_load = self._only.by_load
        return by_load[one].worker, by_load[other].worker

    def _count(self) -> int:
        """How many workers are free, left-out workers included."""
        return len(self._only.by_load) if self._only is not None else sum(map(len, self._indexes))

    def _at(self, place: int) -> Worker:
        """One by its place among all, whatever their order."""
        for index in self._indexes:
            if place < len(index):
                return index.by_load[place].worker
            place -= len(index)
        raise IndexError(place)

    def _in_turn(self, entries: Callable[[], Iterator[Entry]]) -> Iterator[Entry]:
        without = self._without

        def some() -> Iterator[Entry]:
            found = entries()
            return filter(lambda each: each.worker not in without, found) if without else found

        if not self._again:
            return some()
        for rank in range(LAST_RANK):
            found = filter(partial(_has_rank, rank), some())
            first = next(found, None)
            if first is not None:
                return chain((first,), found)
        return some()


def _has_rank(rank: int, entry: Entry) -> bool:
    return entry.worker.trust.retry_rank == rank


def _merged(
    parts: list[Iterator[Entry]], key: Callable[[Entry], str] | None = None
) -> Iterator[Entry]:
    return parts[0] if len(parts) == 1 else heapq.merge(*parts, key=key)
