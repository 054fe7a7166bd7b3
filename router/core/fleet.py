"""The workers, which of them match, and the choice of a pair."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from router.core.record import Record
from router.core.story import MAX_NAME_CHARACTERS, Alternative, Choice, Rejection
from router.core.values import (
    Edition,
    Fingerprint,
    Needs,
    Offer,
    Phase,
    Profile,
    ServedModel,
    Standing,
)
from router.policies import Policy

PolicyFactory = Callable[[], Policy]
_KEY = attrgetter("key")
_WHOLE = Standing.WHOLE
NOTHING = Needs()
MOST_CANDIDATES = 4
"""Told of each choice; more would cost each request."""


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
    record: Record = field(default_factory=Record)
    """How its address has done lately; the Fleet's, so that it outlives the stream."""

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


class Pair(NamedTuple):
    prefill: Worker
    decode: Worker


class Pick(NamedTuple):
    """A worker that is to run a leg."""

    worker: Worker
    choice: Choice


class Group:
    """The workers of one fingerprint that take work: any of its prefill with any of its decode."""

    def __init__(self, policy: Policy) -> None:
        self.prefill: list[Worker] = []
        self.decode: list[Worker] = []
        self.policy = policy
        self.offer = Offer(0, frozenset())

    def note_offer(self) -> None:
        """Say what its workers can take, now that they are these."""
        profiles = [each.profile for each in (*self.prefill, *self.decode)]
        self.offer = Offer(
            min(each.context_length for each in profiles),
            frozenset.intersection(*(each.logits_processors for each in profiles)),
        )

    def pairs(self) -> int:
        return len(self.prefill) * len(self.decode)

    def holds(self, pair: Pair) -> bool:
        return pair.prefill in self.prefill and pair.decode in self.decode


class EditionFleet:
    """The workers of one edition: its groups differ in what KV is like, not in what tokens mean."""

    def __init__(self, edition: Edition, policy: Policy) -> None:
        self.edition = edition
        self.policy = policy
        self.groups: dict[Fingerprint, Group] = {}
        self.served = ServedModel(name=edition.model, tokenizer_sha256=edition.tokenizer_sha256)
        self.pairless_since: float | None = None
        self.offers: frozenset[Offer] = frozenset()
        """Those of its pairs, or of the pairs that it had last."""
        self.offered_since: float | None = None
        """When they became these; None: they have never been others."""

    def serve(self, now: float) -> None:
        """Say what frontends are to know, now that the groups are as they are. Without a pair it is
        what they knew, and requests wait for another.
        """
        paired = [group for group in self.groups.values() if group.pairs()]
        if paired:
            self.served, self.pairless_since = _served(self.edition, paired), None
            offers = frozenset(group.offer for group in paired)
            if self.offers and offers != self.offers:
                self.offered_since = now
            self.offers = offers
        elif self.pairless_since is None:
            had_pairs = self.served.ready_pairs > 0
            self.served = replace(self.served, ready_pairs=0, waits=had_pairs)
            self.pairless_since = now

    def meeting(self, needs: Needs) -> frozenset[Offer]:
        """Those of its offers that a request can be run by."""
        return frozenset([each for each in self.offers if each.meets(needs)])

    def unmet_since(self, needs: Needs) -> float | None:
        """Since when no pair can run what needs that, at the earliest; None: some can."""
        if self.pairless_since is not None or self.meeting(needs):
            return self.pairless_since
        return self.offered_since


class Fleet:
    """Policies are made afresh for each edition (prefill) and each fingerprint (decode), so that
    the traffic of one does not turn the round of another.
    """

    def __init__(self, prefill_policy: PolicyFactory, decode_policy: PolicyFactory) -> None:
        self.workers: dict[str, Worker] = {}
        self.editions: dict[Edition, EditionFleet] = {}
        self.records: dict[str, Record] = {}
        """By address, of workers that are connected or were not long ago."""
        self.rejected: dict[str, tuple[Rejection, ...]] = {}
        """By model, where somebody has asked since the fleet changed."""
        self._prefill_policy = prefill_policy
        self._decode_policy = decode_policy

    def served(self) -> tuple[ServedModel, ...]:
        """Every edition seen since the start; one without a ready pair is not servable now."""
        return tuple(self.editions[each].served for each in sorted(self.editions))

    def serves(self, model: str) -> bool:
        """Whether it has known a worker of the model."""
        return any(each.model == model for each in self.editions)

    def edition(self, model: str, tokenizer_sha256: str) -> Edition:
        """Which one a request is of; one that names no tokenizer, that with the most ready pairs,
        or that for which requests wait. It may be one that no worker is of.
        """
        if not tokenizer_sha256:
            mine = sorted(each for each in self.editions if each.model == model)
            if mine:
                return max(mine, key=self._readiness)
        return Edition(model, tokenizer_sha256)

    def _readiness(self, edition: Edition) -> tuple[int, bool]:
        served = self.editions[edition].served
        return served.ready_pairs, served.waits

    def record(self, key: str) -> Record:
        """How an address has done lately."""
        return self.records.setdefault(key, Record())

    def like(self, worker: Worker) -> list[Worker]:
        """The workers of its group and phase, those that are ejected and itself included."""
        print_ = worker.profile.fingerprint
        return [
            each
            for each in self.workers.values()
            if each.phase is worker.phase and each.usable and each.profile.fingerprint == print_
        ]

    def regroup(self, now: float) -> list[Worker]:
        """Take a change of the workers in. Costs a pass over all of them; changes are rare.

        Returns the workers that are whole again, because none of their group and phase was.
        """
        self.rejected.clear()
        for mine in self.editions.values():
            for group in mine.groups.values():
                group.prefill.clear()
                group.decode.clear()
        for worker in sorted(self.workers.values(), key=lambda each: each.key):
            group = self._group(worker.profile.fingerprint)
            if worker.usable:
                (group.prefill if worker.phase is Phase.PREFILL else group.decode).append(worker)
        forgiven: list[Worker] = []
        for mine in self.editions.values():
            for group in mine.groups.values():
                for workers in (group.prefill, group.decode):
                    forgiven += _forgiven(workers, now)
                    workers[:] = [each for each in workers if not each.ejected]
            mine.groups = {
                print_: group
                for print_, group in mine.groups.items()
                if group.prefill or group.decode
            }
            for group in mine.groups.values():
                group.note_offer()
            mine.serve(now)
        return forgiven

    def forget(self, now: float, memory_seconds: float) -> None:
        """Let requests wait no more for an edition that had its last pair so long ago, or whose
        model has pairs of another by now.
        """
        paired = {each.model for each, mine in self.editions.items() if mine.served.ready_pairs}
        for edition, mine in self.editions.items():
            since = mine.pairless_since
            if mine.served.waits and since is not None:
                waits = now - since < memory_seconds and edition.model not in paired
                mine.served = replace(mine.served, waits=waits)

    def free_pairs(self, edition: Edition, needs: Needs = NOTHING) -> int:
        """Sequences of an edition, with such needs, that could start now."""
        return sum(
            min(_free_slots(group.prefill), _free_slots(group.decode))
            for group in self._groups(edition, needs)
        )

    def has_pair(self, edition: Edition, needs: Needs, *, other_than: Pair | None) -> bool:
        """Whether a pair that can run it takes work, busy or not, beside the given one."""
        return any(
            group.pairs() > (other_than is not None and group.holds(other_than))
            for group in self._groups(edition, needs)
        )

    def pick(
        self, edition: Edition, needs: Needs, *, other_than: Pair | None
    ) -> tuple[Pick, Pick] | None:
        """A pair with a free slot on both sides, by the policies; None where there is none.

        `other_than` is never picked, and neither of its workers where others are free. Workers that
        have not closed legs in time come last.
        """
        decodes_of: dict[str, tuple[Group, list[Worker]]] = {}
        prefills: list[Worker] = []
        for group in self._groups(edition, needs):
            decodes = [each for each in group.decode if each.free]
            if not decodes:
                continue
            for worker in group.prefill:
                if worker.free and decodes != _excluded(worker, other_than):
                    prefills.append(worker)
                    decodes_of[worker.key] = group, decodes
        if not prefills:
            return None
        if len(decodes_of) > 1:
            prefills.sort(key=_KEY)
        avoided = None if other_than is None else other_than.prefill
        prefill = _choose(self.editions[edition].policy, _preferred(prefills, avoided))
        group, decodes = decodes_of[prefill.worker.key]
        if other_than is not None and prefill.worker is other_than.prefill:
            decodes = [each for each in decodes if each is not other_than.decode]
        avoided = None if other_than is None else other_than.decode
        return prefill, _choose(group.policy, _preferred(decodes, avoided))

    def parkers(
        self, edition: Edition, needs: Needs, *, other_than: Collection[str] = ()
    ) -> list[Worker]:
        """Prefill workers of an edition that may run a context-only request: not where it would
        show what nobody has judged, and none of those keys.
        """
        return [
            worker
            for group in self._groups(edition, needs)
            for worker in group.prefill
            if worker.profile.parks
            and worker.key not in other_than
            and group.decode
            and _judges_enough(worker, group.decode)
        ]

    def pick_parker(
        self, edition: Edition, needs: Needs, *, other_than: Collection[str] = ()
    ) -> Pick | None:
        """One of them with a free slot, by the policy; None where there is none."""
        parkers = self.parkers(edition, needs, other_than=other_than)
        free = sorted((each for each in parkers if each.free), key=_KEY)
        return _choose(self.editions[edition].policy, _preferred(free, None)) if free else None

    def keeper(self, kv_peer: str) -> Worker | None:
        """The connected prefill worker that hands over there, draining or not."""
        for worker in self.workers.values():
            if worker.phase is Phase.PREFILL and worker.profile.kv_endpoint == kv_peer:
                return worker
        return None

    def decoders(self, kv_peer: str) -> list[Worker]:
        """Decode workers that take work and can read the KV of that prefill worker."""
        group = self._group_of(kv_peer)
        return [] if group is None else group.decode

    def pick_decoder(self, kv_peer: str) -> Pick | None:
        """One of them with a free slot, by the policy; None where there is none."""
        group = self._group_of(kv_peer)
        free = [] if group is None else [each for each in group.decode if each.free]
        return _choose(group.policy, _preferred(free, None)) if group and free else None

    def mismatches(self, worker: Worker) -> Iterable[tuple[Worker, str]]:
        """Workers of the other phase that serve its model and differ from it, with the field."""
        mine = worker.profile.fingerprint
        for other in self.workers.values():
            theirs = other.profile.fingerprint
            if other.phase is not worker.phase and theirs.model == mine.model:
                field_name = mine.difference(theirs)
                if field_name is not None:
                    yield other, field_name

    def uses(self, worker: Worker) -> bool:
        """Whether some pair has the worker: it takes work, and a matching one does."""
        if not worker.usable or worker.ejected:
            return False
        group = self._known_group(worker.profile.fingerprint)
        if group is None:
            return False
        return bool(group.decode if worker.phase is Phase.PREFILL else group.prefill)

    def refusal(self, worker: Worker) -> str:
        """Why no pair uses a worker now, for people; empty: one does."""
        if self.uses(worker):
            return ""
        if (reason := worker.withheld()) and not worker.defect():
            return reason
        other_phase = Phase.DECODE if worker.phase is Phase.PREFILL else Phase.PREFILL
        return self.misfit(worker) or f"no matching {other_phase} worker takes work"

    def misfit(self, worker: Worker) -> str:
        """Why a worker cannot be paired with some other, or any, for people; empty: it can."""
        if defect := worker.defect():
            return defect_text(worker, defect)
        for other, name in self.mismatches(worker):
            return difference_text(worker, other, name)
        return ""

    def _groups(self, edition: Edition, needs: Needs) -> Iterator[Group]:
        """Those whose workers can run what needs that."""
        for group in self.editions[edition].groups.values():
            if group.offer.meets(needs):
                yield group

    def _group_of(self, kv_peer: str) -> Group | None:
        keeper = self.keeper(kv_peer)
        return None if keeper is None else self._known_group(keeper.profile.fingerprint)

    def _known_group(self, fingerprint: Fingerprint) -> Group | None:
        mine = self.editions.get(fingerprint.edition)
        return None if mine is None else mine.groups.get(fingerprint)

    def _group(self, fingerprint: Fingerprint) -> Group:
        edition = fingerprint.edition
        mine = self.editions.get(edition)
        if mine is None:
            mine = self.editions[edition] = EditionFleet(edition, self._prefill_policy())
        group = mine.groups.get(fingerprint)
        if group is None:
            group = mine.groups[fingerprint] = Group(self._decode_policy())
        return group


def _served(edition: Edition, paired: Collection[Group]) -> ServedModel:
    """What frontends are told of an edition with groups that have a pair."""
    profiles = [each.profile for group in paired for each in (*group.prefill, *group.decode)]
    contexts = [group.offer.context_length for group in paired]
    names = [group.offer.logits_processors for group in paired]
    return ServedModel(
        name=edition.model,
        tokenizer_sha256=edition.tokenizer_sha256,
        max_sequences=min(each.max_sequences for each in profiles),
        context_length=min(contexts),
        longest_context=max(contexts),
        vocabulary=min(each.vocabulary for each in profiles),
        ready_pairs=sum(group.pairs() for group in paired),
        logits_processors=tuple(sorted(frozenset.intersection(*names))),
        any_logits_processors=tuple(sorted(frozenset.union(*names))),
    )


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


def _choose(policy: Policy, candidates: list[Worker]) -> Pick:
    worker = policy.choose(candidates)
    first = candidates[:MOST_CANDIDATES]
    others = tuple([Alternative(each.key, each.cost) for each in first if each is not worker])
    name = worker.profile.name[:MAX_NAME_CHARACTERS]
    return Pick(worker, Choice(worker.key, name, worker.cost, len(candidates), others))


def _free_slots(workers: list[Worker]) -> int:
    return sum(each.free for each in workers)


def _excluded(prefill: Worker, pair: Pair | None) -> list[Worker] | None:
    """The decode workers that must not join `prefill`."""
    return [pair.decode] if pair is not None and prefill is pair.prefill else None


def _preferred(workers: list[Worker], avoided: Worker | None) -> list[Worker]:
    """`avoided`: where it failed before; it goes to one that has not failed lately, if it can."""
    sound = [each for each in workers if not each.overdue] or workers
    if avoided is None:
        return sound
    others = [each for each in sound if each is not avoided] or sound
    return [each for each in others if not each.record.doubtful] or others


def _forgiven(workers: list[Worker], now: float) -> list[Worker]:
    """Those of one phase of a group, where none is whole: all of them are again."""
    if any(each.record.whole for each in workers):
        return []
    for each in workers:
        each.record.restore(now)
    return workers.copy()


def _judges_enough(prefill: Worker, decode: Iterable[Worker]) -> bool:
    """Whether a first token that prefill alone has judged may be shown: its hook stands for theirs,
    and nothing for classifiers.
    """
    return not any(
        each.profile.has_classifiers or (each.profile.has_hook and not prefill.profile.has_hook)
        for each in decode
    )
