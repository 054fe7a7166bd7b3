"""The metrics of the forms of answers that requests ask for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from tandem import metrics
from tandem.hooks.contract import Phase
from tandem.logits.forms.workshop import Workshop


def form_metrics(phase: Phase, forms: Workshop) -> Iterator[Metric]:
    """Metrics of compiled forms: count, time, memory."""
    compiled = CounterMetricFamily(
        "tandem_form_compilations",
        "Forms of answers that were compiled, or not: wrong, too_dear, lost with a process.",
        labels=("phase", "outcome"),
    )
    for outcome, count in forms.outcomes.items():
        compiled.add_metric((phase, outcome), count)
    yield compiled
    seconds = HistogramMetricFamily(
        "tandem_form_compile_seconds",
        "Time of compiling one form, a process's start included.",
        labels=("phase",),
    )
    seconds.add_metric((phase,), forms.seconds.buckets(), forms.seconds.total)
    yield seconds
    yield metrics.gauge(
        "tandem_form_waiting", "Forms that wait to be compiled.", forms.waiting, phase=phase
    )
    yield metrics.gauge(
        "tandem_form_cache_bytes",
        "Memory of compiled forms, in use or kept.",
        forms.cache.used_bytes,
        phase=phase,
    )
    yield metrics.counter(
        "tandem_form_cache_hits",
        "Forms of sequences that were compiled, or refused, already.",
        forms.hits,
        phase=phase,
    )
    yield metrics.counter(
        "tandem_form_cache_misses",
        "Forms of sequences that had to be compiled, or waited for another's.",
        forms.misses,
        phase=phase,
    )
