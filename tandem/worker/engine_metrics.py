"""What an engine says of its schedulers, by rank. An engine that does not say it has no samples."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from tandem import metrics
from tandem.engine.base import EngineFigures
from tandem.hooks.contract import Phase

_LABELS = ("phase", "rank")
_STATES = ("running", "queued", "preallocating", "transferring", "retracted")
"""Fields of RankLoad."""


def engine_metrics(phase: Phase, figures: EngineFigures) -> Iterator[Metric]:
    """Read when they are scraped."""
    requests = GaugeMetricFamily(
        "tandem_engine_requests",
        "Requests that the engine holds: running in its batch, queued (for it, or until their form"
        " is compiled), preallocating (they wait for pages of decode's KV cache), transferring, or"
        " retracted for want of KV cache.",
        labels=(*_LABELS, "state"),
    )
    filled = GaugeMetricFamily(
        "tandem_engine_kv_used_ratio",
        "Share of a rank's KV cache that requests use, 0 to 1; what only the prefix cache keeps is"
        " free.",
        labels=_LABELS,
    )
    accepted = GaugeMetricFamily(
        "tandem_engine_accept_length",
        "Tokens that a step of speculative decoding makes for one sequence, on average since the"
        " start.",
        labels=_LABELS,
    )
    for load in figures.ranks:
        labels = (phase, str(load.rank))
        for state in _STATES:
            requests.add_metric((*labels, state), getattr(load, state))
        total = load.kv_tokens_total
        filled.add_metric(labels, load.kv_tokens_used / total if total else 0.0)
        if load.accept_length is not None:
            accepted.add_metric(labels, load.accept_length)
    yield from (requests, filled, accepted)
    units = GaugeMetricFamily(
        "tandem_engine_unit",
        "Always 1; names a unit that Tandem adds to the engine, and its state: kept, unneeded"
        " (the engine's release does without) or lacking (the release lacks what the unit needs).",
        labels=("phase", "unit", "state"),
    )
    for unit in figures.units:
        units.add_metric((phase, unit.name, unit.state.value), 1)
    yield units
    if figures.retractions is not None:
        yield metrics.counter(
            "tandem_engine_retractions",
            "How often requests were taken out of the batch because the KV cache was full; what"
            " they had computed is computed again, or kept aside.",
            figures.retractions,
            phase=phase,
        )
