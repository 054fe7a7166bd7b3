"""Metrics of a worker's hooks and classifiers (S4-120)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from tandem import metrics
from tandem.hooks.audit import AuditLog
from tandem.hooks.classifiers.counters import ClassifierCounters
from tandem.hooks.contract import Phase
from tandem.hooks.counters import CountedHook
from tandem.hooks.runner.processes.pool import HookPool

_HOOK = ("phase", "hook")
_CLASSIFIER = ("phase", "classifier")


def hook_metrics(phase: Phase, hooks: Sequence[CountedHook]) -> Iterator[Metric]:
    """The metrics of the chain, wherever it runs."""
    seconds = HistogramMetricFamily(
        "tandem_hook_seconds", "Time of one call of a hook.", labels=_HOOK
    )
    verdicts = CounterMetricFamily(
        "tandem_hook_verdicts",
        "Verdicts of hooks; error and timeout are failures of the hook.",
        labels=(*_HOOK, "verdict"),
    )
    held = GaugeMetricFamily(
        "tandem_hook_held_tokens", "Tokens that wait for a hook's later verdict.", labels=_HOOK
    )
    sequences = GaugeMetricFamily(
        "tandem_hook_open_sequences",
        "Sequences that a hook was not yet told the end of.",
        labels=_HOOK,
    )
    info = GaugeMetricFamily(
        "tandem_hook_info",
        "1 for each hook: what its failure does, and whether its verdicts are applied.",
        labels=(*_HOOK, "on_error", "shadow"),
    )
    for hook in hooks:
        entry, counters = hook.entry, hook.counters
        labels = (phase, entry.name)
        seconds.add_metric(labels, counters.seconds.buckets(), counters.seconds.total)
        for verdict, count in counters.verdicts.items():
            verdicts.add_metric((*labels, verdict), count)
        held.add_metric(labels, counters.held_tokens)
        sequences.add_metric(labels, counters.sequences)
        info.add_metric((*labels, entry.on_error, str(entry.shadow).lower()), 1)
    yield from (seconds, verdicts, held, sequences, info)


def pool_metrics(phase: Phase, pool: HookPool) -> Iterator[Metric]:
    """The metrics of the processes that run the chain."""
    yield metrics.gauge(
        "tandem_hook_pool_processes",
        "Processes of the hook pool that can judge.",
        pool.processes_up,
        phase=phase,
    )
    yield metrics.counter(
        "tandem_hook_pool_restarts",
        "Processes of the hook pool that died or hung, and were replaced.",
        pool.restarts,
        phase=phase,
    )
    yield metrics.gauge(
        "tandem_hook_pool_outstanding",
        "Chunks that wait for the pool's verdict.",
        pool.outstanding,
        phase=phase,
    )


def audit_metrics(phase: Phase, logs: Sequence[AuditLog]) -> Iterator[Metric]:
    """The metrics of what this process writes down."""
    records = CounterMetricFamily(
        "tandem_audit_records",
        "Decisions for the audit log: written, or dropped because the disk was slower.",
        labels=("phase", "outcome"),
    )
    records.add_metric((phase, "written"), sum(each.written for each in logs))
    records.add_metric((phase, "dropped"), sum(each.dropped for each in logs))
    yield records
    yield metrics.counter(
        "tandem_audit_errors",
        "Writes that the disk refused; they are tried again.",
        sum(each.errors for each in logs),
        phase=phase,
    )


def classifier_metrics(
    phase: Phase, classifiers: Mapping[str, ClassifierCounters]
) -> Iterator[Metric]:
    """The metrics of classifiers, by their names."""
    seconds = HistogramMetricFamily(
        "tandem_classifier_seconds",
        "Time of one call of a classifier, the wait for its turn included.",
        labels=_CLASSIFIER,
    )
    verdicts = CounterMetricFamily(
        "tandem_classifier_verdicts",
        "Decisions of classifiers; error and timeout are failures, cancelled: the output ended.",
        labels=(*_CLASSIFIER, "verdict"),
    )
    running = GaugeMetricFamily(
        "tandem_classifier_running", "Calls that have not returned.", labels=_CLASSIFIER
    )
    for name, counters in classifiers.items():
        labels = (phase, name)
        seconds.add_metric(labels, counters.seconds.buckets(), counters.seconds.total)
        for verdict, count in counters.verdicts.items():
            verdicts.add_metric((*labels, verdict), count)
        running.add_metric(labels, counters.running)
    yield from (seconds, verdicts, running)
