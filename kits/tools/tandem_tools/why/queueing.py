"""Why a sequence waited in a router's queue: whoever had the slots, or kept workers from giving
theirs.
"""

from __future__ import annotations

from tandem_router.core.story import Moment

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
_LAST_RUN = "workers had to close its last run first"
_CAUSES = (
    ("with the adapter", "adapter"),
    ("do not match", "rollout"),
    ("failed", "retry"),
    (_LAST_RUN, "retry"),
    (_FULL, "slots"),
    ("others wait", "turn"),
)
"""Kinds of causes by what a router says of the wait itself."""
_HELD = ("adapter", "slots", "turn")
"""Kinds of waits that end once a run of somebody else does."""


def explain(queued: Moment) -> tuple[str, str]:
    """Why a sequence waited: the kind of cause, and a sentence for people."""
    told = queued.cause or _LAST_RUN
    unused = _unused(queued)
    if unused is not None:
        kind, names = unused
        return kind, f"It waited in the queue: {told}; {names}.{_holders(queued)}"
    kind = next((kind for words, kind in _CAUSES if words in told), "no_workers")
    where = "for its turn" if kind == "turn" else "in the queue"
    return kind, f"It waited {where}: {told}.{_holders(queued) if kind in _HELD else ''}"


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
