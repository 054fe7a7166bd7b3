"""The histogram that every component counts in. It knows no metrics library, so that cores and hook
processes can count too; a scrape reads `buckets` and `total`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate


class Histogram:
    """Counts of observed values by the smallest bound that is not below them.

    Counting takes no lock: one thread may observe. `counts` has one more entry than `bounds`, for
    what is above them all. `total` is the sum of all observed values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, value: float, times: int) -> None:
        """Count `times` observations of `value` at once."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """The buckets as Prometheus wants them: each bound, and how many are not above it."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        counts = accumulate(map(float, tuple(self.counts)))
        return list(zip(names, counts, strict=True))
