"""The router's metrics, read from the core's own counts when Prometheus asks.

Nothing is counted twice and the path of a frame pays two additions. Reading happens in the metrics
server's thread: it copies each collection before it walks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from router.core.fleet import Worker
from router.core.values import Counts, Fingerprint, Outcome, Phase
from router.relay import Relay
from router.workers import Workers
from tandem import errors, metrics

_ENDS = (Outcome.FINISHED.value, Outcome.TERMINATED.value)
_REJECTIONS = (*Fingerprint._fields[1:], "phase", "limits")


def _error_codes(base: type[errors.TandemError] = errors.TandemError) -> set[str]:
    return {base.code}.union(*(_error_codes(child) for child in base.__subclasses__()))


OUTCOMES = (*_ENDS, *sorted(_error_codes()))
"""How a request can end: finished, terminated by a hook, or an error's code."""


def new_registry(relay: Relay, workers: Workers) -> CollectorRegistry:
    """The router's registry, every series of it present from the start."""
    registry = metrics.new_registry("router")
    registry.register(RouterCollector(relay))
    registry.register(DiscoveryCollector(workers))
    return registry


class DiscoveryCollector(Collector):
    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        keeper = self._workers.keeper
        listed = GaugeMetricFamily(
            "tandem_router_discovered_workers",
            "Workers that discovery lists, connected or not.",
            labels=["phase"],
        )
        for phase, number in self._workers.discovered().items():
            listed.add_metric([phase.value], number)
        yield listed
        yield _gauge(
            "discovery_age_seconds",
            "Since discovery last heard from its source; 0 where it has none.",
            keeper.age_seconds(),
        )
        failed = CounterMetricFamily(
            "tandem_router_discovery_errors", "Failed look-ups of workers.", labels=["reason"]
        )
        for trouble, number in keeper.errors.items():
            failed.add_metric([trouble.value], number)
        yield failed


class RouterCollector(Collector):
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def collect(self) -> Iterator[Metric]:
        state = self._relay.core.state
        yield from _counters(state.counts)
        yield _histogram(state.counts)
        yield _gauge("queue_length", "Sequences that wait for a pair.", len(state.waiting))
        yield _gauge("queue_limit", "Sequences that may wait.", state.bounds.max_queue)
        yield _gauge("open_sequences", "Admitted and not ended.", state.open_sequences)
        yield _gauge("frontends", "Connected frontends.", len(state.frontends))
        yield _gauge("draining", "1 while the router shuts down.", int(state.draining))
        pairs = sum(model.ready_pairs for model in self._relay.fleet.models)
        yield _gauge("ready_pairs", "Matching pairs that take work.", pairs)
        yield from self._relayed()
        yield from self._workers(list(state.fleet.workers.values()))

    def _relayed(self) -> Iterator[Metric]:
        relay = self._relay
        yield CounterMetricFamily(
            "tandem_router_relayed_bytes", "Payload passed on.", value=relay.relayed_bytes
        )
        yield CounterMetricFamily(
            "tandem_router_relayed_frames", "Frames of workers.", value=relay.relayed_frames
        )

    def _workers(self, workers: list[Worker]) -> Iterator[Metric]:
        routable = GaugeMetricFamily(
            "tandem_router_routable_workers", "Workers that some pair uses.", labels=["phase"]
        )
        fleet = self._relay.core.state.fleet
        used = [worker for worker in workers if fleet.uses(worker)]
        for phase in Phase:
            routable.add_metric([phase.value], sum(each.phase is phase for each in used))
        yield routable
        for name, text, value in (
            ("open_legs", "This router's legs on the worker: slots it has taken.", _open_legs),
            ("other_legs", "Legs of other routers, as the worker last reported.", _other_legs),
            ("slots", "Legs that the worker takes at once.", _slots),
            ("overdue_legs", "Cancelled legs that it has not closed in time.", _overdue),
        ):
            family = GaugeMetricFamily(
                f"tandem_router_worker_{name}", text, labels=["worker", "phase"]
            )
            for worker in workers:
                family.add_metric([worker.key, worker.phase.value], value(worker))
            yield family


def _open_legs(worker: Worker) -> int:
    return len(worker.legs)


def _other_legs(worker: Worker) -> int:
    return worker.other_legs


def _slots(worker: Worker) -> int:
    return worker.capacity


def _overdue(worker: Worker) -> int:
    return worker.overdue


def _counters(counts: Counts) -> Iterator[Metric]:
    yield _labelled("requests", "Requests by end.", "outcome", counts.requests, OUTCOMES)
    yield _labelled("cancels", "Cancelled legs by reason.", "reason", counts.cancels, OUTCOMES)
    yield _labelled(
        "pair_rejected",
        "Pairs that do not match, by the first field that differs.",
        "reason",
        counts.pairs_rejected,
        _REJECTIONS,
    )
    legs = CounterMetricFamily("tandem_router_legs", "Closed legs.", labels=["phase", "outcome"])
    for phase in Phase:
        for outcome in Outcome:
            legs.add_metric([phase.value, outcome.value], counts.legs.get((phase, outcome), 0))
    yield legs
    yield CounterMetricFamily(
        "tandem_router_retries", "Further attempts on another pair.", value=counts.retries
    )
    yield CounterMetricFamily(
        "tandem_router_requeued",
        "Sequences queued again because a worker was full, or shut down, before it began.",
        value=counts.requeued,
    )
    yield CounterMetricFamily(
        "tandem_router_settle_overdue",
        "Cancelled legs that were not closed in time.",
        value=counts.settle_overdue,
    )


def _labelled(
    name: str, text: str, label: str, values: dict[str, int], known: Iterable[str]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"tandem_router_{name}", text, labels=[label])
    for value in known:
        family.add_metric([value], values.get(value, 0))
    return family


def _histogram(counts: Counts) -> HistogramMetricFamily:
    seconds = counts.queue_seconds
    family = HistogramMetricFamily(
        "tandem_router_queue_seconds", "From admission to the start of a sequence's legs."
    )
    family.add_metric([], seconds.buckets(), seconds.total)
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tandem_router_{name}", text, value=value)
