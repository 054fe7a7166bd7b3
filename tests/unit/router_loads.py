"""What workers report to a router's core."""

from __future__ import annotations

from typing import Any

from tandem.prefix_blocks import Blocks, pack
from tandem.v1 import worker_pb2
from tandem_router.core.events import WorkerLoad


def worker_load(
    worker: str, open_legs: int, step_age: float | None = None, **said: Any
) -> WorkerLoad:
    """`step_age`: seconds; None: the worker does not say. `said`: others of tandem.v1.Load."""
    load = worker_pb2.Load(open_legs=open_legs, **said)
    if step_age is not None:
        load.step_age_ms = int(step_age * 1000)
    return WorkerLoad(worker, load)


def cache_changes(
    *, anew: bool, entered: Blocks = (), left: Blocks = (), keeps_none: bool = False
) -> worker_pb2.CacheChanges:
    """What entered and left a worker's cache."""
    return worker_pb2.CacheChanges(
        anew=anew, entered=pack(entered), left=pack(left), keeps_none=keeps_none
    )
