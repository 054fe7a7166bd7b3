"""What two workers of one process tell under the same names, as one exposition: each family once,
with the samples of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem import metrics


class Merged(Collector):
    """Several collectors, whose samples differ in their labels."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._collectors = list(collectors)

    def collect(self) -> Iterator[Metric]:
        return metrics.merged(family for each in self._collectors for family in each.collect())
