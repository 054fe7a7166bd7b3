"""Why a sequence waited in a router's queue: whoever had the slots, or kept workers from giving
theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from tandem_router.core.story import Moment
from tandem_tools.why.evidence import Evidence, Wait

_REASONS = (
    ("ejected", "it is ejected"),
    ("drain", "it is draining"),
    ("canary", "it has not moved KV"),
    ("slow_engine", "its engine has work and makes no step"),
    ("rollout", ", but "),
    ("rollout", "no matching"),
)
"""Kinds of causes by what a router says of a worker that it does not use."""
_FULL = "no slot is free"


class Told(NamedTuple):
    kind: str
    sentence: str


def explain(wait: Wait, evidence: Evidence) -> Told:
    """Why a sequence waited, for people."""
    queued = wait.queued
    told = queued.cause or "workers had to close its last run first"
    unused = _unused(queued)
    if unused is not None:
        kind, names = unused
        return Told(kind, f"It waited in the queue: {told}; {names}.{_holders(queued)}")
    if "with the adapter" in told:
        return Told("adapter", f"It waited in the queue: {told}.{_holders(queued)}")
    if "do not match" in told:
        return Told("rollout", f"It waited in the queue: {told}.")
    if "failed" in told or not queued.cause:
        return Told("retry", f"It waited in the queue: {told}.")
    if _FULL in told:
        return Told("slots", f"It waited in the queue: {told}.{_holders(queued)}")
    if "others wait" in told:
        return Told("turn", f"It waited for its turn: {told}.{_holders(queued)}")
    return Told("no_workers", f"It waited in the queue: {told}.")


def _unused(queued: Moment) -> tuple[str, str] | None:
    """The kind, and the workers by name, where half of the workers that would not do were full of
    nothing: they were not used.
    """
    workers = () if queued.workers is None else queued.workers.workers
    unused = [each for each in workers if not each.reason.startswith(_FULL)]
    if not unused or 2 * len(unused) < len(workers):
        return None
    for kind, words in _REASONS:
        mine = [each for each in unused if words in each.reason]
        if mine:
            names = "; ".join(f"{each.phase} worker {each.worker}: {each.reason}" for each in mine)
            return kind, names
    return None


def _holders(queued: Moment) -> str:
    holders = queued.holders
    if holders is None:
        return ""
    tenants = " and ".join(
        f"{count} of the key {tenant}" if tenant else f"{count} without a key"
        for tenant, count in holders.tenants.items()
    )
    longest = f", the longest for {holders.seconds:.1f} s: {holders.trace_id}"
    return f" {tenants} ran then{longest if holders.trace_id else ''}."
