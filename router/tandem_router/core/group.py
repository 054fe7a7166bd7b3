"""The workers of one fingerprint: any of its prefill with any of its decode makes a pair, or where
they are aggregated, each with its twin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tandem_router.core.free import FreeWorkers, Index, Kind
from tandem_router.core.pace import Pace
from tandem_router.core.prefixes import HeldPrefixes
from tandem_router.core.values import Offer, Phase, Standing
from tandem_router.core.worker import Worker
from tandem_router.policies import Policy

TAKING = (Standing.WHOLE, Standing.PROBATION)
"""Standings of workers that take work."""


class Traits(NamedTuple):
    """What a profile says of what its group can do; most workers of a side say the same."""

    max_sequences: int
    context_length: int
    vocabulary: int
    logits_processors: frozenset[str]
    lora_adapters: frozenset[str]
    cannot_sample: frozenset[str]
    has_hook: bool
    has_classifiers: bool
    parks: bool


class Side:
    """The connected workers of one phase of a group. `update` and `remove` are told of each change,
    and cost the same however many there are, but for the places in the indexes.
    """

    def __init__(self, prefixes: HeldPrefixes | None = None) -> None:
        """`prefixes`: what workers' prefix caches hold; None: nothing is known of it."""
        self.standings: dict[Standing | None, dict[str, Worker]] = {
            standing: {}
            for standing in (Standing.WHOLE, Standing.EJECTED, Standing.PROBATION, None)
        }
        """The connected workers by standing and address, as `Worker.used_as` says the standing."""
        self.traits: Counter[Traits] = Counter()
        """What those say of themselves that take work, with how many say it."""
        self.proving: dict[str, Worker] = {}
        """Workers that could take work and are yet to be proved, by address."""
        self.usual = Pace()
        """How long prefill computes so many tokens, or decode generates them."""
        self._prefixes = prefixes
        self.free = 0
        """How many of those that take work have a free slot."""
        self._indexes: dict[Kind, Index] = {}
        """Indexes of free workers; each free worker is in one."""

    def __len__(self) -> int:
        """How many of them take work."""
        return sum(len(self.standings[each]) for each in TAKING)

    def taking(self) -> Iterator[Worker]:
        """The workers that take work, in no order."""
        return (each for standing in TAKING for each in self.standings[standing].values())

    @property
    def connected(self) -> int:
        """How many there are, whether or not they take work."""
        return sum(map(len, self.standings.values()))

    @property
    def example(self) -> Worker | None:
        """Any connected worker; None: no worker is connected."""
        return next((each for some in self.standings.values() for each in some.values()), None)

    @property
    def slots(self) -> int:
        """How many legs those can take together."""
        return sum(index.slots for index in self._indexes.values())

    @property
    def capacity(self) -> int:
        """How many legs the workers that take work have slots for, taken or free."""
        return sum(count * each.max_sequences for each, count in self.traits.items())

    def update(self, worker: Worker) -> None:
        """Take in how a worker stands now, or that it has come."""
        self.remove(worker)
        standing = worker.used_as
        self.standings[standing][worker.key] = worker
        if worker.fit and worker.trust.standing is Standing.PROVING:
            self.proving[worker.key] = worker
        if standing in TAKING:
            worker.side = self
            self.traits[traits_of(worker)] += 1
            self.place(worker)

    def remove(self, worker: Worker) -> None:
        """Forget a worker that has gone; it need not be known."""
        for some in self.standings.values():
            some.pop(worker.key, None)
        self.proving.pop(worker.key, None)
        if worker.side is self:
            worker.side = None
            self.traits -= Counter((traits_of(worker),))
            if worker.index is not None:
                self._take_out(worker, worker.index)

    def place(self, worker: Worker) -> bool:
        """Take in the slots of a worker that takes work. Returns whether it has a free one now, and
        had none.
        """
        slots, was = worker.free, worker.index
        if was is not None and not (slots and was.kind.overdue is worker.has_overdue):
            self._take_out(worker, was)
        if slots:
            index = worker.index
            if index is None:
                index = self._index(worker)
                self.free += 1
            index.put(worker, slots)
        return was is None and slots > 0

    def has(self, worker: Worker) -> bool:
        """Whether it takes work here and has a free slot."""
        return worker.side is self and worker.index is not None

    def has_free(self, *, but: Worker) -> bool:
        """Whether one has a free slot beside the given one."""
        return self.free > self.has(but)

    def indexes(self) -> list[Index]:
        """The indexes that hold workers, in no order."""
        return [index for index in self._indexes.values() if index.slots]

    def _take_out(self, worker: Worker, index: Index) -> None:
        index.remove(worker)
        self.free -= 1

    def _index(self, worker: Worker) -> Index:
        profile = worker.profile
        kind = Kind(worker.has_overdue, profile.parks, profile.has_hook, worker.aggregated)
        index = self._indexes.get(kind)
        if index is None:
            index = self._indexes[kind] = Index(kind, self._prefixes)
        return index


class Group:
    """The connected workers of one fingerprint, by phase."""

    def __init__(
        self, policy: Policy, prefixes: HeldPrefixes | None = None, *, aggregated: bool = False
    ) -> None:
        self.prefill = Side(prefixes)
        self.decode = Side()
        self.policy = policy
        """How decode is chosen; the others are chosen for all groups of the edition."""
        self.aggregated = aggregated
        self.whole: set[str] = set()
        """Instances of aggregated workers whose phases both take work."""
        self.pace = Pace()
        self.offer = Offer(0, frozenset())

    def note_offer(self) -> None:
        """Compute the offer of the workers that take work now."""
        if traits := [*self.prefill.traits, *self.decode.traits]:
            self.offer = Offer(
                min(each.context_length for each in traits),
                frozenset.intersection(*(each.logits_processors for each in traits)),
                frozenset.intersection(*(each.lora_adapters for each in traits)),
                frozenset.union(*(each.cannot_sample for each in traits)),
            )

    @property
    def pairs(self) -> int:
        """How many pairs take work."""
        if self.aggregated:
            return len(self.whole)
        return len(self.prefill) * len(self.decode)

    @property
    def pairs_to_be(self) -> int:
        """How many there are once all are proved that are yet to be; none where nobody takes work,
        as what those could take is not known. Aggregated workers need no proof.
        """
        if self.aggregated:
            return len(self.whole)
        prefill, decode = self.prefill, self.decode
        if not (prefill or decode):
            return 0
        return (len(prefill) + len(prefill.proving)) * (len(decode) + len(decode.proving))

    @property
    def free_pairs(self) -> int:
        """How many sequences could start at once."""
        return min(self.prefill.slots, self.decode.slots)

    def note_twins(self, worker: Worker) -> None:
        """Take in whether both phases of an aggregated worker take work now."""
        twin, instance = worker.twin, worker.profile.instance
        if worker.side is not None and twin is not None and twin.side is not None:
            self.whole.add(instance)
        else:
            self.whole.discard(instance)

    def holds(self, prefill: Worker, decode: Worker) -> bool:
        """Whether both of them take work here."""
        return prefill.side is self.prefill and decode.side is self.decode

    def side(self, phase: Phase) -> Side:
        return self.prefill if phase is Phase.PREFILL else self.decode

    def other_side(self, phase: Phase) -> Side:
        return self.decode if phase is Phase.PREFILL else self.prefill

    def may_park(self, prefill: Kind | Traits) -> bool:
        """Whether a context-only request may run on such a prefill worker: not where a first token
        would be shown that it alone has judged, as its hook stands for decode's, and nothing for
        classifiers.
        """
        return (
            prefill.parks
            and len(self.decode) > 0
            and not any(
                each.has_classifiers or (each.has_hook and not prefill.has_hook)
                for each in self.decode.traits
            )
        )


def preferred(
    free: Collection[Index],
    avoided: Collection[Worker] = (),
    *,
    barred: bool = False,
    again: bool = False,
) -> FreeWorkers | None:
    """The free workers to choose from; None: there are none. Those with overdue legs only where
    there are no others, and likewise the `avoided`, or never if they are `barred`. `again`: see
    FreeWorkers.
    """
    for overdue in (False, True):
        indexes = [index for index in free if index.kind.overdue is overdue]
        if not indexes:
            continue
        if len(indexes) == 1 and not (avoided or again):
            return indexes[0].alone
        if found := FreeWorkers(indexes, avoided, again=again):
            return found
        if not barred:
            return FreeWorkers(indexes)
    return None


def traits_of(worker: Worker) -> Traits:
    """What the profile of a worker says."""
    profile = worker.profile
    return Traits(
        profile.max_sequences,
        profile.context_length,
        profile.vocabulary,
        profile.logits_processors,
        profile.lora_adapters,
        profile.cannot_sample,
        profile.has_hook,
        profile.has_classifiers,
        profile.parks,
    )
