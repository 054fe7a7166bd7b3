"""What the frontend counts of its streams to routers, and of the tokens that come by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from tandem.histogram import Histogram
from tandem.metrics import STEP_SECONDS, counter
from tandem.tracing.exemplars import Exemplars
from tandem.upstream.router_stream import RouterStream

Missing = Literal["router", "pair", "room"]


class InterTokenSeconds(Collector):
    """The times between tokens: counted on the event loop, without a lock, read by a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counts = Histogram(STEP_SECONDS)
        self._exemplars = Exemplars(STEP_SECONDS)
        self.add = self._counts.add
        registry.register(self)

    def traced(self, trace_id: str) -> Callable[[float, int], None]:
        """`add` for one traced request, which leaves exemplars."""

        def add(value: float, times: int) -> None:
            self.add(value, times)
            self._exemplars.keep(value, trace_id)

        return add

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(
            "tandem_frontend_itl_seconds",
            "Time between a choice's tokens, as they come from the router.",
        )
        buckets = self._exemplars.beside(self._counts.buckets())
        family.add_metric([], buckets, self._counts.total)
        yield family


class CompletionTokens(Collector):
    """Tokens that have come: counted on the event loop, without a lock, read by a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.count = 0
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        name, text = "tandem_frontend_completion_tokens", "Tokens received from the router."
        yield counter(name, text, self.count)


class UpstreamMetrics:
    """Every series is there, at 0, from the start."""

    def __init__(self, registry: CollectorRegistry, *, of_tokens: bool = True) -> None:
        """`of_tokens`: what is counted for each token or message of them is counted too."""
        self._registry = registry
        streams = Gauge(
            "tandem_frontend_router_streams",
            "Streams to routers: current ones take what is new, old ones serve what is open while"
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
        self.unreadable = Counter(
            "tandem_frontend_unreadable_output",
            "Faults in workers' output: rows that are missing, come again, are of sequences that"
            " run elsewhere, or cannot be read.",
            registry=registry,
        )
        self.completion_tokens: CompletionTokens | None = None
        self.inter_token_seconds: InterTokenSeconds | None = None
        if of_tokens:
            self.completion_tokens = CompletionTokens(registry)
            self.inter_token_seconds = InterTokenSeconds(registry)

    def inter_token(self, trace_id: str) -> Callable[[float, int], object] | None:
        """Counts times between tokens; `trace_id` leaves exemplars. None: nobody counts them."""
        counts = self.inter_token_seconds
        if counts is None:
            return None
        return counts.traced(trace_id) if trace_id else counts.add

    def watch_waiting(self, read: Callable[[Missing], float]) -> None:
        waiting = Gauge(
            "tandem_frontend_waiting_requests",
            "Requests that wait here, by what is missing: a router, a pair of workers at the"
            " routers that are there, or room in a router's queue.",
            ["missing"],
            registry=self._registry,
        )
        for missing in get_args(Missing):
            waiting.labels(missing).set_function(partial(read, missing))

    def left(self, stream: RouterStream) -> None:
        """A stream takes nothing new any longer."""
        if stream.opened:
            self.current.dec()
            (self._drained if stream.draining else self._lost).inc()
