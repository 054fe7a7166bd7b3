"""What metrics there are: names, types, labels and help texts, as the components define them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric

TARGET_LABELS = frozenset({"namespace", "job", "pod", "instance"})
"""What a scrape adds to every series. `job` is the Helm release."""
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
_POD = frozenset({"namespace", "pod", "container"})
_OTHERS = {
    "up": TARGET_LABELS,
    "ALERTS": frozenset({"namespace", "job", "alertname", "alertstate", "severity"}),
    "kube_pod_container_status_waiting_reason": _POD | {"reason"},
    "kube_pod_init_container_status_waiting": _POD,
    "kube_pod_init_container_status_running": _POD,
    "kube_pod_init_container_status_terminated": _POD,
}
"""Series of Prometheus itself, and of kube-state-metrics, which a cluster may have."""


class UnknownMetricError(Exception):
    """A query names a metric that no component has."""


@dataclass(slots=True, frozen=True)
class Definition:
    """One metric family. `name` is that of prometheus_client: a counter's has no `_total`."""

    name: str
    kind: str
    help: str
    labels: frozenset[str]

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a scrape holds."""
        return tuple(self.name + suffix for suffix in _SUFFIXES.get(self.kind, ("",)))


class Catalogue:
    """All families, and the labels of each series. Recorded series are added as they are made."""

    def __init__(self, families: Iterable[Metric]) -> None:
        """Raises ValueError for a family without a sample: its labels cannot be known."""
        self.definitions = _definitions(families)
        self._by_series: dict[str, Definition] = {
            series: each for each in self.definitions.values() for series in each.series
        }
        self._labels: dict[str, frozenset[str]] = dict(_OTHERS)
        for series, definition in self._by_series.items():
            bucket = {"le"} if series.endswith("_bucket") else set()
            self._labels[series] = definition.labels | TARGET_LABELS | bucket

    def record(self, name: str, labels: Iterable[str]) -> None:
        """A recording rule makes this series, with these labels and no other."""
        self._labels[name] = frozenset(labels)

    def labels(self, series: str) -> frozenset[str]:
        """All labels of a series. Raises UnknownMetricError."""
        if series not in self._labels:
            raise UnknownMetricError(f"no component has a metric {series}")
        return self._labels[series]

    def help(self, series: str) -> str:
        """Empty for what a rule records and what Prometheus makes itself."""
        definition = self._by_series.get(series)
        return definition.help if definition is not None else ""


def _definitions(families: Iterable[Metric]) -> Mapping[str, Definition]:
    found: dict[str, Definition] = {}
    sampled = set()
    for family in families:
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        if family.samples:
            sampled.add(family.name)
        if family.name in found:
            labels |= found[family.name].labels
        found[family.name] = Definition(
            family.name, family.type, family.documentation, frozenset(labels)
        )
    if unknown := found.keys() - sampled:
        raise ValueError(f"no sample shows the labels of {', '.join(sorted(unknown))}")
    return found
