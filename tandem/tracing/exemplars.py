"""Exemplars: the trace of one request beside a histogram's bucket, so that a slow bucket in a graph
leads to a request that was slow. They appear where /metrics is read as OpenMetrics.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.samples import Exemplar


class Exemplars:
    """The last traced observation in each bucket of a histogram."""

    __slots__ = ("_bounds", "_last")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the histogram's, without +Inf."""
        self._bounds = bounds
        self._last: list[tuple[str, float, float] | None] = [None] * (len(bounds) + 1)
        """(trace_id, value, seconds since the epoch)."""

    def keep(self, value: float, trace_id: str) -> None:
        self._last[bisect_left(self._bounds, value)] = trace_id, value, time.time()

    def beside(
        self, buckets: Sequence[tuple[str, float]]
    ) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        """The histogram's buckets, (bound, count), each with its exemplar where it has one."""
        return [
            bucket if kept is None else (*bucket, Exemplar(labels(kept[0]), *kept[1:]))
            for bucket, kept in zip(buckets, self._last, strict=True)
        ]


def labels(trace_id: str) -> dict[str, str]:
    """The labels that an exemplar carries."""
    return {"trace_id": trace_id}
