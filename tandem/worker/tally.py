"""What a worker counts while it works. Plain numbers, added up for each step; metrics.py reads them
when they are scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tandem.engine.base import KvTransfer
from tandem.metrics import STEP_SECONDS
from tandem.worker.leg import Outcome


class Buckets:
    """A histogram's counts. `counts` has one more entry than `bounds`: what is above them all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class KvTally:
    """Hand-overs by one transport."""

    __slots__ = ("bytes", "seconds")

    def __init__(self) -> None:
        self.bytes = 0
        self.seconds = Buckets(STEP_SECONDS)


class WorkerTally:
    """Of one worker, since its start."""

    def __init__(self) -> None:
        self.legs: dict[Outcome, int] = {
            "finished": 0,
            "terminated": 0,
            "cancelled": 0,
            "failed": 0,
            "regenerate": 0,
        }
        self.tokens = 0
        self.steps = Buckets(STEP_SECONDS)
        self.transfers: dict[str, KvTally] = {"nixl/ucx": KvTally()}

    def step(self, tokens: int, seconds: float) -> None:
        """One engine step, and the time the worker took for it."""
        self.tokens += tokens
        self.steps.observe(seconds)

    def kv(self, transfer: KvTransfer) -> None:
        tally = self.transfers.setdefault(transfer.transport, KvTally())
        tally.bytes += transfer.bytes
        tally.seconds.observe(transfer.seconds)

    def closed(self, outcome: Outcome) -> None:
        self.legs[outcome] += 1
