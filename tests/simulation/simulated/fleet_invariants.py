"""What the fleet keeps in order must be what a look at each worker says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tandem_router.core.fleet import Fleet
from tandem_router.core.free import Kind
from tandem_router.core.group import TAKING, Group, Side, traits_of
from tandem_router.core.values import Fingerprint, Offer, Phase, Standing
from tandem_router.core.worker import Worker


def fleet_faults(fleet: Fleet) -> Iterator[str]:
    """Every difference, for people."""
    expected: dict[tuple[Fingerprint, Phase], list[Worker]] = {}
    for _, worker in sorted(fleet.workers.items()):
        expected.setdefault((worker.profile.fingerprint, worker.phase), []).append(worker)
    for mine in fleet.editions.values():
        for fingerprint, group in mine.groups.items():
            sides = {phase: expected.pop((fingerprint, phase), []) for phase in Phase}
            for phase, workers in sides.items():
                for fault in _side_faults(group.side(phase), workers):
                    yield f"{phase} of {mine.edition.model}: {fault}"
            if not _offers(group.offer, [each for some in sides.values() for each in some]):
                yield f"a group of {mine.edition.model} cannot take {group.offer}"
            yield from _twin_faults(group, [each for some in sides.values() for each in some])
            if not (group.prefill.connected or group.decode.connected):
                yield f"a group of {mine.edition.model} is kept that no worker is of"
    if expected:
        yield f"{expected} are in no group"
    keepers = [each for each in fleet.workers.values() if each.phase is Phase.PREFILL]
    for each in keepers:
        found = fleet.keeper(each.profile.kv_endpoint)
        if found not in keepers or found.profile.kv_endpoint != each.profile.kv_endpoint:
            yield f"{each.key} is not found by where it hands over"
    if len({each.profile.kv_endpoint for each in keepers}) != len(fleet._keepers):
        yield "a place of hand-over is kept that nobody has"
    yield from _prefix_faults(fleet)


def _prefix_faults(fleet: Fleet) -> Iterator[str]:
    """What is known of prefix caches, from both ends."""
    prefixes = fleet.prefixes
    held = {(block, each) for each in fleet.workers.values() for block in each.holdings.blocks}
    kept = [
        (block, each)
        for aggregated, holders in prefixes._holders.items()
        for block, some in holders.items()
        for each in some
        if each.aggregated is aggregated
    ]
    if set(kept) != held or not len(kept) == len(held) == prefixes.count:
        yield f"{len(kept)} blocks have holders, {len(held)} are held, {prefixes.count} counted"
    if prefixes.count > prefixes._most:
        yield f"{prefixes.count} blocks are known, over the bound of {prefixes._most}"
    if any(each.phase is not Phase.PREFILL for _, each in held):
        yield "a decode worker is known to hold blocks"


def _twin_faults(group: Group, workers: list[Worker]) -> Iterator[str]:
    """Aggregated workers know their other phase, and both have the same slots free."""
    by_instance: dict[str, list[Worker]] = {}
    for each in workers if group.aggregated else ():
        by_instance.setdefault(each.profile.instance, []).append(each)
    whole = {name for name, some in by_instance.items() if sum(map(_takes, some)) == len(Phase)}
    if group.whole != whole:
        yield f"{group.whole} take work in both phases, and should be {whole}"
    for name, some in by_instance.items():
        if any(each.twin not in (*some, None) or each.twin is each for each in some):
            yield f"a phase of {name} takes another for its twin"
        if len(some) == len(Phase) and len({each.free for each in some if _takes(each)}) > 1:
            yield f"the phases of {name} have {[each.free for each in some]} slots free"


def _takes(worker: Worker) -> bool:
    return _standing(worker) in TAKING


def _standing(worker: Worker) -> Standing | None:
    """The standing of a worker that may be given clients' legs; None: it may not, whatever else."""
    proved = worker.trust.standing is not Standing.PROVING
    return worker.trust.reputation if proved and worker.fit else None


def _side_faults(side: Side, workers: list[Worker]) -> Iterator[str]:
    """`workers`: by address."""
    standings = {each: _standing(each) for each in workers}
    if standings != {each: name for name, some in side.standings.items() for each in some.values()}:
        yield f"workers stand as {standings}, and are kept as {side.standings}"
    taking = [each for each, name in standings.items() if name in TAKING]
    if len(side) != len(taking) or {*side.taking()} != {*taking}:
        yield "those that take work are others"
    if any((each.side is side) is not (standings[each] in TAKING) for each in workers):
        yield "a worker takes work elsewhere than it knows"
    if side.traits != Counter(map(traits_of, taking)):
        yield "the profiles of those that take work are others"
    free = [each for each in taking if each.free]
    if (side.free, side.slots) != (len(free), sum(each.free for each in free)):
        yield f"{side.slots} slots are free at {side.free} workers, and should be at {free}"
    for index in side.indexes():
        kind = index.kind
        by_load = [entry.worker for entry in index.by_load]
        alike = [each for each in free if _kind(each) == kind]
        if by_load != sorted(alike, key=lambda each: (each.load(), each.key)):
            yield f"the order by load of {alike} is {by_load}"
        if [entry.worker for entry in index.by_address()] != alike:
            yield f"the order by address is not {alike}"


def _offers(offer: Offer, workers: list[Worker]) -> bool:
    """Whether it is what each can take of those that take work, if there are any."""
    taking = [each.profile for each in workers if _takes(each)]
    if not taking:
        return True
    names = frozenset.intersection(*(each.logits_processors for each in taking))
    adapters = frozenset.intersection(*(each.lora_adapters for each in taking))
    cannot = frozenset.union(*(each.cannot_sample for each in taking))
    return offer == (min(each.context_length for each in taking), names, adapters, cannot)


def _kind(worker: Worker) -> Kind:
    twin = worker.twin
    overdue = worker.overdue + (twin.overdue if twin else 0)
    profile = worker.profile
    return Kind(overdue > 0, profile.parks, profile.has_hook, worker.aggregated)
