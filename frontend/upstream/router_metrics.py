"""What the frontend counts of its streams to routers."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from frontend.upstream.router_stream import RouterStream


class RouterMetrics:
    """Every series is there, at 0, from the start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        streams = Gauge(
            "tandem_frontend_router_streams",
            "Streams to routers: current takes what is new, old ones serve what is open while"
            " their routers drain.",
            ["state"],
            registry=registry,
        )
        self.current, self.old = streams.labels("current"), streams.labels("old")
        reconnects = Counter(
            "tandem_frontend_router_reconnects",
            "Current streams that were given up, because their router drained or was lost.",
            ["cause"],
            registry=registry,
        )
        self._drained, self._lost = reconnects.labels("draining"), reconnects.labels("lost")
        self.resubmitted = Counter(
            "tandem_frontend_resubmitted_prompts",
            "Prompts submitted again because a router had not taken them.",
            registry=registry,
        )

    def watch_waiting(self, read: Callable[[], float]) -> None:
        Gauge(
            "tandem_frontend_waiting_requests",
            "Requests that wait for a router.",
            registry=self._registry,
        ).set_function(read)

    def left(self, stream: RouterStream) -> None:
        """A stream takes nothing new any longer."""
        self.current.set(0)
        if stream.opened:
            (self._drained if stream.draining else self._lost).inc()
