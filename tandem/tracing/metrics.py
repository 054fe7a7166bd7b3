"""Counts what became of a process's spans."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tandem.tracing.spans import Tracer


class SpanCollector(Collector):
    def __init__(self, tracer: Tracer | None) -> None:
        self._tracer = tracer

    def collect(self) -> Iterator[Metric]:
        tracer = self._tracer
        spans = CounterMetricFamily(
            "tandem_trace_spans",
            "Spans of traced requests: exported, or dropped because no collector took them.",
            labels=["outcome"],
        )
        spans.add_metric(["exported"], 0 if tracer is None else tracer.exported)
        spans.add_metric(["dropped"], 0 if tracer is None else tracer.dropped)
        yield spans
