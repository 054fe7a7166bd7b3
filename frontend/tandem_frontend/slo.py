"""Latency objectives: whether each request met them, counted exactly.

A histogram can say that only where the objective is one of its bounds, and never for two objectives
of the same request together, which is what goodput asks.
"""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge


class Slo(NamedTuple):
    """Seconds that a request may take."""

    ttft: float
    """To its first token."""
    itl: float
    """Between its tokens, in the mean."""


class SloCounts:
    """Successful requests by the objectives that they met."""

    def __init__(self, slo: Slo, registry: CollectorRegistry) -> None:
        self._slo = slo
        seconds = Gauge(
            "tandem_frontend_slo_seconds",
            "The latency objectives: time to first token, mean time between tokens.",
            ["objective"],
            registry=registry,
        )
        for name, value in slo._asdict().items():
            seconds.labels(name).set(value)
        requests = Counter(
            "tandem_frontend_slo_requests",
            "Requests that succeeded, by whether each latency objective was met or missed.",
            ["ttft", "itl"],
            registry=registry,
        )
        self._requests = {
            (ttft, itl): requests.labels(_word(ttft), _word(itl))
            for ttft in (True, False)
            for itl in (True, False)
        }

    def count(self, *, ttft_seconds: float, itl_seconds: float) -> None:
        """One request. `itl_seconds` is its mean time between tokens."""
        met = ttft_seconds <= self._slo.ttft, itl_seconds <= self._slo.itl
        self._requests[met].inc()


def _word(met: bool) -> str:
    return "met" if met else "missed"
