"""Why no pair takes a worker, for people: one entry for each worker and reason."""

from __future__ import annotations

from collections.abc import Iterator

from tandem_router.core.fleet import Fleet
from tandem_router.core.story import Rejected, Rejection
from tandem_router.core.values import Fingerprint, Phase
from tandem_router.core.worker import Worker, defect_text, difference_text

MOST_NAMED = 64
"""Entries; of others only the number is told."""
_Examples = dict[Phase, dict[Fingerprint, Worker]]
"""For each phase one worker of each fingerprint."""


def by_reason(fleet: Fleet, worker: Worker) -> dict[str, tuple[str, int]]:
    """What keeps a worker out of pairs: by "phase", "limits" or a field of the fingerprint, the
    reason for people and how many pairs are refused for it.
    """
    found: dict[str, tuple[str, int]] = {}
    if defect := worker.defect():
        found[defect] = defect_text(worker, defect), 1
    for other, name, count in fleet.mismatches(worker):
        reason, pairs = found.get(name) or (difference_text(worker, other, name), 0)
        found[name] = reason, pairs + count
    return found


def of_model(fleet: Fleet, name: str) -> tuple[Rejection, ...]:
    """The workers of a model that no pair uses, by address. Costs a pass over all workers, once
    after each change of the fleet.
    """
    known = fleet.rejected.get(name)
    if known is None:
        known = fleet.rejected[name] = tuple(_rejections(fleet, name, busy=False))
    return known


def of_model_now(fleet: Fleet, name: str) -> tuple[Rejection, ...]:
    """Likewise, and those that have no free slot. Costs a pass each time."""
    return tuple(_rejections(fleet, name, busy=True))


def told(found: tuple[Rejection, ...]) -> Rejected:
    """The rejections that a story names, and how many more there were."""
    return Rejected(found[:MOST_NAMED], max(0, len(found) - MOST_NAMED))


def _rejections(fleet: Fleet, name: str, *, busy: bool) -> Iterator[Rejection]:
    workers = [
        fleet.workers[key]
        for key in sorted(fleet.workers)
        if fleet.workers[key].profile.fingerprint.model == name
    ]
    examples: _Examples = {phase: {} for phase in Phase}
    for worker in workers:
        examples[worker.phase].setdefault(worker.profile.fingerprint, worker)
    for worker in workers:
        for reason in _reasons(fleet, worker, examples, busy=busy):
            yield Rejection(worker.key, worker.phase.value, reason)


def _reasons(fleet: Fleet, worker: Worker, examples: _Examples, *, busy: bool) -> list[str]:
    if defect := worker.defect():
        return [defect_text(worker, defect)]
    if reason := fleet.withheld(worker):
        return [reason]
    if fleet.uses(worker):
        full = busy and not worker.free
        return [f"no slot is free: {worker.open_legs} of {worker.capacity} taken"] if full else []
    other_phase = Phase.DECODE if worker.phase is Phase.PREFILL else Phase.PREFILL
    if worker.aggregated:
        return [f"its {other_phase} phase takes no work"]
    mine = worker.profile.fingerprint
    differ: dict[str, str] = {}
    for theirs, other in examples[other_phase].items():
        if not theirs.aggregated and (field := mine.difference(theirs)):
            differ.setdefault(field, difference_text(worker, other, field))
    return [*differ.values()] or [f"no matching {other_phase} worker takes work"]
