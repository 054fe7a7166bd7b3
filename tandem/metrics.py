"""Prometheus metrics: what all components share.

Names are `tandem_<frontend|router|worker>_<what>_<seconds|bytes|tokens>[_total]`; labels never hold
a request's id. Components create every label combination at start, so that each series is there at
0. Counts are added up for each frame, never for each token: an observation costs 0.2 to 0.5
microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem.byte_budget import ByteBudget
from tandem.version import tandem_version

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Buckets for what a client waits for: a first token, a queue, a whole request."""
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
"""Buckets for what happens at every step: the time between tokens, a KV transfer."""
HOOK_SECONDS = (1e-5, 1e-4, 1e-3, 5e-3, 0.025, 0.1, 0.5, 2.5)
"""Buckets for user code on the token path."""


def new_registry(component: str) -> CollectorRegistry:
    """A registry of one component, with process figures and `tandem_build_info`."""
    # They would be half of a scrape, and nobody reads them.
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    prometheus_client.PlatformCollector(registry=registry)
    prometheus_client.GCCollector(registry=registry)
    info = Gauge("tandem_build_info", "Always 1.", ["component", "version"], registry=registry)
    info.labels(component, tandem_version()).set(1)
    return registry


def gauge(name: str, help: str, value: float, **labels: str) -> Metric:
    """A family of one series, for a collector."""
    family = GaugeMetricFamily(name, help, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def counter(name: str, help: str, value: float, **labels: str) -> Metric:
    """A family of one series, for a collector; `name` is without its `_total`."""
    family = CounterMetricFamily(name, help, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def merged(families: Iterable[Metric]) -> Iterator[Metric]:
    """Each family once, with the samples of all that have its name; they differ in their labels."""
    found: dict[str, Metric] = {}
    for family in families:
        first = found.setdefault(family.name, family)
        if first is not family:
            first.samples += family.samples
    return iter(found.values())


class HeldMetrics(Collector):
    """What a component holds for others: `tandem_<component>_held_bytes`, and `_limit` of it."""

    def __init__(self, component: str, budget: ByteBudget, **labels: str) -> None:
        self._name = f"tandem_{component}_held_bytes"
        self._budget = budget
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            self._name,
            "Bodies, prompts, collected answers and backlogs that the process holds.",
            self._budget.held,
            **self._labels,
        )
        yield gauge(
            f"{self._name}_limit",
            "Bytes that the process may hold; new requests are refused beyond three quarters.",
            self._budget.limit,
            **self._labels,
        )


class DrainMetrics(Collector):
    """A component's shutdown: `tandem_<component>_drain_seconds` and `_drain_aborted_total`."""

    def __init__(
        self, component: str, *, clock: Callable[[], float] = time.monotonic, **labels: str
    ) -> None:
        self._prefix = f"tandem_{component}_drain"
        self._labels = labels
        self._clock = clock
        self._began: float | None = None
        self._ended: float | None = None
        self.aborted = 0
        """What was still open when the time was over, and was cut off."""

    def begin(self) -> None:
        self._began = self._clock()

    def end(self) -> None:
        self._ended = self._clock()

    @property
    def seconds(self) -> float:
        """Seconds that the drain has gone on, or took; 0 before it begins."""
        if self._began is None:
            return 0.0
        return (self._clock() if self._ended is None else self._ended) - self._began

    def collect(self) -> Iterator[Metric]:
        yield gauge(
            f"{self._prefix}_seconds",
            "Duration of the shutdown; 0 before a shutdown begins.",
            self.seconds,
            **self._labels,
        )
        yield counter(
            f"{self._prefix}_aborted",
            "Requests that were open at the end of the shutdown's time, and were cut off.",
            self.aborted,
            **self._labels,
        )
