"""The workers, which of them match, and the choice of a pair."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf
from typing import NamedTuple

from tandem.v1 import router_pb2
from tandem_router.core import picking
from tandem_router.core.edition import EditionFleet
from tandem_router.core.free import Index
from tandem_router.core.group import Group, Side, preferred, traits_of
from tandem_router.core.picking import Pair, Pick, Picked, picked_from
from tandem_router.core.prefixes import DEFAULT_BYTES, HeldPrefixes
from tandem_router.core.story import Rejection
from tandem_router.core.trust import Trust
from tandem_router.core.values import (
    NOTHING,
    Disaggregate,
    Edition,
    Fingerprint,
    Needs,
    Phase,
    Standing,
)
from tandem_router.core.worker import Worker, defect_text, difference_text
from tandem_router.policies import PolicyFactory, Prompt


class Changes(NamedTuple):
    """What comes of a change of the fleet."""

    forgiven: list[Worker]
    """Workers that are whole again, because none of their side was."""
    paired: list[Worker]
    """Workers that some pair uses now, for the first time."""


class Fleet:
    """Policies are made afresh for each edition (prefill, and aggregated workers) and each
    fingerprint (decode), so that the traffic of one does not turn the round of another.
    """

    def __init__(
        self,
        prefill_policy: PolicyFactory,
        decode_policy: PolicyFactory,
        disaggregate: Disaggregate = "auto",
        prefix_bytes: int = DEFAULT_BYTES,
    ) -> None:
        self.prefixes = HeldPrefixes(prefix_bytes)
        """What the caches of prefill workers hold."""
        self.workers: dict[str, Worker] = {}
        self.editions: dict[Edition, EditionFleet] = {}
        self.trusts: dict[str, Trust] = {}
        """By address, of workers that are connected or were not long ago."""
        self.rejected: dict[str, tuple[Rejection, ...]] = {}
        """By model, where somebody has asked since the fleet changed."""
        self._keepers: dict[str, dict[str, Worker]] = {}
        """Connected prefill workers by where they hand over, and by address."""
        self._processes: dict[tuple[Fingerprint, str], dict[Phase, Worker]] = {}
        """Connected aggregated workers by fingerprint and instance."""
        self._disaggregate: Disaggregate = disaggregate
        self._prefill_policy = prefill_policy
        self._decode_policy = decode_policy

    def served(self) -> tuple[router_pb2.ServedModel, ...]:
        """Every edition seen since the start; one without a ready pair is not servable now."""
        return tuple(self.editions[each].served() for each in sorted(self.editions))

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
        mine = self.editions[edition]
        return mine.ready_pairs, mine.waits

    def trust(self, key: str) -> Trust:
        """How far the worker at an address is trusted."""
        return self.trusts.setdefault(key, Trust())

    def closed_until(self, key: str) -> tuple[float, str]:
        """When a stream to the worker at an address may be opened, and why not before."""
        trust = self.trusts.get(key)
        return (0.0, "") if trust is None else (trust.closed_until, trust.closed_reason)

    def side(self, worker: Worker) -> Side | None:
        """The workers of its group and phase; None: none is connected."""
        group = self._known_group(worker.profile.fingerprint)
        return None if group is None else group.side(worker.phase)

    def partners(self, worker: Worker) -> Side | None:
        """The workers that it would be paired with; None: none is connected."""
        group = self._known_group(worker.profile.fingerprint)
        return None if group is None else group.other_side(worker.phase)

    def withheld(self, worker: Worker) -> str:
        """Why a worker without a defect gets nothing new, whoever it is paired with, for people;
        empty: it does.
        """
        partners = self.partners(worker)
        with_partner = partners is not None and partners.connected
        return worker.withheld() or (worker.trust.unproved if with_partner else "")

    def update(self, worker: Worker, now: float) -> Changes:
        """Take in that a worker has come or gone, or takes work where it did not, or the reverse.

        Costs the same however many workers there are, unless none of its side is whole any more, or
        it is the first of its side.
        """
        self.rejected.clear()
        mine, group = self._group(worker.profile.fingerprint)
        side, others = group.side(worker.phase), group.other_side(worker.phase)
        was_empty = not len(side)
        if self.workers.get(worker.key) is worker:
            side.update(worker)
        else:
            side.remove(worker)
            self.prefixes.forget(worker)
        self._update_keepers(worker)
        forgiven = _forgive(side, now)
        if worker.aggregated:
            for each in (*self._update_twins(worker), *forgiven):
                group.note_twins(each)
                self.place(each)
        group.note_offer()
        mine.serve(now)
        if not (group.prefill.connected or group.decode.connected):
            del mine.groups[worker.profile.fingerprint]
        newly = dict.fromkeys([worker, *forgiven, *(others.taking() if was_empty else ())])
        newly |= dict.fromkeys([each.twin for each in newly if each.twin is not None])
        paired = [each for each in newly if not each.paired and self.uses(each)]
        for each in paired:
            each.paired = True
        return Changes(forgiven, paired)

    def place(self, worker: Worker) -> bool:
        """Take in that a worker's slots are taken otherwise. Whatever changes them calls this.
        Returns whether it has a free one that is to be given away, and had none.
        """
        twin = worker.twin
        freed = twin is not None and twin.side is not None and twin.side.place(twin)
        return (worker.side is not None and worker.side.place(worker)) or freed

    def forget(self, now: float, memory_seconds: float, expected: Collection[str]) -> float:
        """Let requests wait no more for an edition that had its last pair so long ago, unless its
        model is expected, or whose model has pairs of another by now. Returns when there is one
        more to forget.
        """
        next_at = inf
        paired = {each.model for each, mine in self.editions.items() if mine.ready_pairs}
        for edition, mine in self.editions.items():
            since = mine.pairless_since
            if mine.waits and since is not None:
                remembered = now - since < memory_seconds or edition.model in expected
                mine.waits = remembered and edition.model not in paired
                if mine.waits and edition.model not in expected:
                    next_at = min(next_at, since + memory_seconds)
        return next_at

    def free_pairs(self, edition: Edition, needs: Needs = NOTHING) -> int:
        """Sequences of an edition, with such needs, that could start now."""
        return sum(group.free_pairs for group in self._groups(edition, needs))

    def has_pair(
        self, edition: Edition, needs: Needs, *, other_than: Pair | None, proved: bool = True
    ) -> bool:
        """Whether a pair that can run it takes work, busy or not, beside the given one; or, unless
        it must be `proved`, will once all are that are yet to be.
        """
        return any(
            (group.pairs if proved else group.pairs_to_be)
            > (other_than is not None and group.holds(*other_than))
            for group in self._groups(edition, needs)
        )

    def pick(
        self,
        edition: Edition,
        needs: Needs,
        prompt: Prompt,
        *,
        other_than: Pair | None,
        now: float,
    ) -> Picked | None:
        """Workers with a free slot for both legs, by the policies: a pair or an aggregated worker,
        whichever way is better; None where there are none.

        `other_than` is never picked, and neither of its workers where others are free. Workers that
        have not closed legs in time come last.
        """
        return picking.pick(
            self.editions[edition],
            self._groups(edition, needs),
            self.prefixes,
            prompt,
            other_than=other_than,
            disaggregate=self._disaggregate,
            now=now,
        )

    def parkers(self, edition: Edition, needs: Needs, *, other_than: Collection[str] = ()) -> int:
        """How many prefill workers of an edition may run a context-only request: not where it would
        show what nobody has judged, and none of those keys.
        """
        found = 0
        for group in self._groups(edition, needs):
            side = group.prefill
            found += sum(n for traits, n in side.traits.items() if group.may_park(traits))
            others = (each for each in self._connected(other_than) if each.side is side)
            found -= sum(group.may_park(traits_of(each)) for each in others)
        return found

    def parking_slots(self, edition: Edition, needs: Needs) -> int:
        """How many context-only sequences could start now."""
        return sum(each.slots for each in self._free_parkers(edition, needs))

    def pick_parker(
        self,
        edition: Edition,
        needs: Needs,
        prompt: Prompt,
        *,
        other_than: Collection[str] = (),
    ) -> Pick | None:
        """One of them with a free slot, by the policy; None where there is none."""
        others = self._connected(other_than)
        found = preferred(self._free_parkers(edition, needs), others, barred=True)
        if found is None:
            return None
        return picked_from(self.editions[edition].policy.choose(found, prompt), found)

    def _free_parkers(self, edition: Edition, needs: Needs) -> list[Index]:
        return [
            each
            for group in self._groups(edition, needs)
            for each in group.prefill.indexes()
            if group.may_park(each.kind)
        ]

    def _connected(self, keys: Collection[str]) -> list[Worker]:
        return [self.workers[each] for each in keys if each in self.workers]

    def keeper(self, kv_peer: str) -> Worker | None:
        """The connected prefill worker that hands over there, draining or not."""
        return next(iter(self._keepers.get(kv_peer, {}).values()), None)

    def decoders(self, kv_peer: str) -> int:
        """How many decode workers take work and can read the KV of that prefill worker."""
        group = self._group_of(kv_peer)
        return 0 if group is None else len(group.decode)

    def decode_slots(self, kv_peer: str) -> int:
        """How many sequences could go on from there now."""
        group = self._group_of(kv_peer)
        return 0 if group is None else group.decode.slots

    def pick_decoder(self, kv_peer: str, prompt: Prompt) -> Pick | None:
        """One of them with a free slot, by the policy; None where there is none."""
        group = self._group_of(kv_peer)
        found = preferred(group.decode.indexes()) if group else None
        if group is None or found is None:
            return None
        return picked_from(group.policy.choose(found, prompt), found)

    def mismatches(self, worker: Worker) -> Iterator[tuple[Worker, str, int]]:
        """What it differs from: for each fingerprint of its model that workers of the other phase
        have, one of those, the field, and how many they are.
        """
        mine = worker.profile.fingerprint
        if mine.aggregated:
            return  # it looks for no other than its twin
        for edition, fleet in self.editions.items():
            if edition.model == mine.model:
                for theirs, group in fleet.groups.items():
                    if theirs.aggregated:
                        continue
                    side = group.other_side(worker.phase)
                    field_name, other = mine.difference(theirs), side.example
                    if field_name is not None and other is not None:
                        yield other, field_name, side.connected

    def uses(self, worker: Worker) -> bool:
        """Whether some pair has the worker: it takes work, and a matching one does."""
        if worker.side is None:
            return False
        if worker.aggregated:
            return worker.twin is not None and worker.twin.side is not None
        partners = self.partners(worker)
        return partners is not None and len(partners) > 0

    def refusal(self, worker: Worker) -> str:
        """Why no pair uses a worker now, for people; empty: one does."""
        if self.uses(worker):
            return ""
        if not worker.defect() and (reason := self.withheld(worker)):
            return reason
        other_phase = Phase.DECODE if worker.phase is Phase.PREFILL else Phase.PREFILL
        return self.misfit(worker) or f"no matching {other_phase} worker takes work"

    def misfit(self, worker: Worker) -> str:
        """Why a worker cannot be paired with some other, or any, for people; empty: it can."""
        if defect := worker.defect():
            return defect_text(worker, defect)
        for other, name, _ in self.mismatches(worker):
            return difference_text(worker, other, name)
        return ""

    def groups_for(self, edition: Edition, needs: Needs, kv_peer: str) -> list[Group]:
        """The groups whose workers can run a request: what goes on from parked KV, that of the
        prefill worker that hands over at `kv_peer`.
        """
        if not kv_peer:
            return list(self._groups(edition, needs))
        group = self._group_of(kv_peer)
        return [] if group is None else [group]

    def _groups(self, edition: Edition, needs: Needs) -> Iterator[Group]:
        """Groups of the edition whose workers can run a request with these needs."""
        for group in self.editions[edition].groups.values():
            if group.offer.meets(needs):
                yield group

    def _group_of(self, kv_peer: str) -> Group | None:
        keeper = self.keeper(kv_peer)
        return None if keeper is None else self._known_group(keeper.profile.fingerprint)

    def _update_twins(self, worker: Worker) -> list[Worker]:
        """The phases of an aggregated worker know each other while both are connected. Returns it
        and whoever is, or was, its twin.
        """
        whole, old = (worker.profile.fingerprint, worker.profile.instance), worker.twin
        mine = self._processes.setdefault(whole, {})
        if self.workers.get(worker.key) is worker:
            mine[worker.phase] = worker
        elif mine.get(worker.phase) is worker:
            del mine[worker.phase]
        prefill, decode = mine.get(Phase.PREFILL), mine.get(Phase.DECODE)
        for each, other in ((worker, None), (prefill, decode), (decode, prefill)):
            if each is not None:
                each.twin = other
        if not mine:
            del self._processes[whole]
        return [each for each in (worker, old, worker.twin) if each is not None]

    def _update_keepers(self, worker: Worker) -> None:
        if worker.phase is not Phase.PREFILL:
            return
        mine = self._keepers.setdefault(worker.profile.kv_endpoint, {})
        if self.workers.get(worker.key) is worker:
            mine[worker.key] = worker
        else:
            mine.pop(worker.key, None)
        if not mine:
            del self._keepers[worker.profile.kv_endpoint]

    def _known_group(self, fingerprint: Fingerprint) -> Group | None:
        mine = self.editions.get(fingerprint.edition)
        return None if mine is None else mine.groups.get(fingerprint)

    def _group(self, fingerprint: Fingerprint) -> tuple[EditionFleet, Group]:
        edition = fingerprint.edition
        mine = self.editions.get(edition)
        if mine is None:
            mine = self.editions[edition] = EditionFleet(
                edition, self._prefill_policy(), self._prefill_policy()
            )
        group = mine.groups.get(fingerprint)
        if group is None:
            group = mine.groups[fingerprint] = Group(
                self._decode_policy(), self.prefixes, aggregated=fingerprint.aggregated
            )
        return mine, group


def _forgive(side: Side, now: float) -> list[Worker]:
    """Make ejected workers whole again on a side that has no whole worker."""
    if side.standings[Standing.WHOLE]:
        return []
    out = side.standings[Standing.EJECTED] | side.standings[Standing.PROBATION]
    forgiven = [out[key] for key in sorted(out)]
    for each in forgiven:
        each.trust.restore(now)
        side.update(each)
    return forgiven
