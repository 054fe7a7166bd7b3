"""Metrics of a worker's legs: how they ended, how long they took, and what their prompts were."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from tandem import metrics
from tandem.hooks.contract import Phase
from tandem.worker.counters import WorkerCounters

_PHASE = ("phase",)


def leg_metrics(phase: Phase, counters: WorkerCounters) -> Iterator[Metric]:
    """Added up when a leg closes; nothing here is counted by token."""
    legs = CounterMetricFamily(
        "tandem_worker_legs", "Sequences that ended here.", labels=(*_PHASE, "outcome")
    )
    for outcome, count in counters.legs.items():
        legs.add_metric((phase, outcome), count)
    failures = CounterMetricFamily(
        "tandem_worker_failed_legs",
        "Sequences that failed or were refused here, by the code of their error.",
        labels=(*_PHASE, "code"),
    )
    for code, count in counters.failures.items():
        failures.add_metric((phase, code), count)
    seconds = HistogramMetricFamily(
        "tandem_worker_leg_seconds",
        "Time of a sequence on this worker, its wait and the hand-over of its KV cache included.",
        labels=_PHASE,
    )
    seconds.add_metric((phase,), counters.leg_seconds.buckets(), counters.leg_seconds.total)
    taken_in = CounterMetricFamily(
        "tandem_worker_input_cpu_seconds",
        "CPU time of the steps in which legs were begun: intake (their tasks read and checked) and"
        " engine_input (the engine given the request).",
        labels=(*_PHASE, "step"),
    )
    taken_in.add_metric((phase, "intake"), counters.intake_seconds)
    taken_in.add_metric((phase, "engine_input"), counters.submit_seconds)
    yield from (legs, failures, seconds, taken_in)
    yield metrics.counter(
        "tandem_worker_prompt_tokens",
        "Prompt tokens of the sequences that ended here.",
        counters.prompt_tokens,
        phase=phase,
    )
    yield metrics.counter(
        "tandem_worker_cached_tokens",
        "Prompt tokens of ended sequences whose KV cache the engine had already.",
        counters.cached_tokens,
        phase=phase,
    )
