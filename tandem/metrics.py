"""Prometheus metrics: what all components share.

Names are `tandem_<frontend|router|worker>_<what>_<seconds|bytes|tokens>[_total]`; labels never hold
a request's id. Components create every label combination at start, so that each series is there at
0. Counts are added up for each frame, never for each token: an observation costs 0.2 to 0.5
microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge

REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Buckets for what a client waits for: a first token, a queue, a whole request."""
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
"""Buckets for what happens at every step: the time between tokens, a KV transfer."""
HOOK_SECONDS = (1e-5, 1e-4, 1e-3, 5e-3, 0.025, 0.1, 0.5, 2.5)
"""Buckets for user code on the token path."""


def tandem_version() -> str:
    """The installed distribution's version."""
    try:
        return version("tandem-serving")
    except PackageNotFoundError:
        return "unknown"


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


def serve(registry: CollectorRegistry, address: str) -> int:
    """Serve `/metrics` on "host:port" (port 0: any) from a thread of its own; returns the port.

    Raises OSError where the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    server, _ = prometheus_client.start_http_server(int(port), addr=host, registry=registry)
    return int(server.server_port)


def cumulative(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """As Prometheus wants buckets: each with all that is not above its bound. `counts` has one more
    entry than `bounds`.
    """
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return [(name, float(total)) for name, total in zip(names, accumulate(counts), strict=True)]
