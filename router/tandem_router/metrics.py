"""The router's metrics: what its core, its relay and its discovery have counted by themselves.

Nothing is counted twice, and the path of a frame pays two additions. A scrape comes from a thread
of its own, so it asks for one `ScrapedRouter`, which is taken on the event loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tandem import errors, metrics
from tandem.endings import Outcome
from tandem_router.choosing import Choosing, Failure
from tandem_router.core.snapshot import UNKNOWN, Snapshot, TrustSnapshot, WorkerSnapshot
from tandem_router.core.values import Counts, Fingerprint, Phase, Reason, Standing, Way
from tandem_router.discovery import Listed
from tandem_router.discovery.base import Trouble
from tandem_router.relay import Relay
from tandem_router.workers import Workers

_ENDS = (Outcome.FINISHED.value, Outcome.TERMINATED.value)
_REJECTIONS = (
    *(each for each in Fingerprint._fields[1:] if each != "aggregated"),
    "phase",
    "limits",
)


def _error_codes(base: type[errors.TandemError] = errors.TandemError) -> set[str]:
    return {base.code}.union(*(_error_codes(child) for child in base.__subclasses__()))


OUTCOMES = (*_ENDS, *sorted(_error_codes()))
"""How a request can end: finished, terminated by a hook, or an error's code."""


RESUMED = ("finished", "failed", "refused")
"""What can come of a sequence that is to be resumed; refused: nobody went on with it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ScrapedRouter:
    """The state of one router that one scrape shows."""

    core: Snapshot
    early: int
    """Sequences of Generate calls that wait for their model's first pair."""
    relayed_bytes: int
    relayed_frames: int
    listed: Mapping[Phase, int]
    """Workers that discovery lists."""
    served: Mapping[Phase, int]
    """Listed workers that this router serves."""
    routers: int
    """Routers that divide the decode workers; 0: nothing is divided."""
    discovery_age_seconds: float
    discovery_errors: Mapping[Trouble, int]
    workers: Iterable[Listed]
    """Workers of discovery's list that this router serves."""
    policy_failures: Mapping[tuple[Phase, Failure], int]


def read(relay: Relay, workers: Workers, choosing: Choosing | None = None) -> ScrapedRouter:
    """What is so now. Call it on the event loop, where nothing changes meanwhile."""
    return ScrapedRouter(
        core=relay.core.snapshot(),
        early=relay.early,
        relayed_bytes=relay.relayed_bytes,
        relayed_frames=relay.relayed_frames,
        listed=workers.discovered(),
        served=workers.served(),
        routers=len(workers.share.routers),
        discovery_age_seconds=workers.keeper.age_seconds(),
        discovery_errors=dict(workers.keeper.errors),
        workers=workers.listed(),
        policy_failures={} if choosing is None else choosing.failures,
    )


def new_registry(reading: Callable[[], ScrapedRouter]) -> CollectorRegistry:
    """The router's registry, every series of it present from the start."""
    registry = metrics.new_registry("router")
    registry.register(RouterCollector(reading))
    return registry


class RouterCollector(Collector):
    """Asks for one reading a scrape, so that its figures agree with each other."""

    def __init__(self, reading: Callable[[], ScrapedRouter]) -> None:
        self._reading = reading

    def collect(self) -> Iterator[Metric]:
        reading = self._reading()
        core = reading.core
        yield from _counters(core.counts)
        yield HistogramMetricFamily(
            "tandem_router_queue_seconds",
            "From admission to the start of a sequence's legs.",
            buckets=core.counts.queue_seconds.buckets(),
            sum_value=core.counts.queue_seconds.total,
        )
        waiting = core.queue_length + reading.early
        yield _gauge("queue_length", "Sequences that wait for a pair.", waiting)
        yield _gauge("queue_limit", "Sequences that may wait.", core.queue_limit)
        yield _gauge(
            "open_sequences",
            "Sequences that were admitted and have not ended.",
            core.open_sequences,
        )
        yield _gauge("frontends", "Connected frontends.", core.frontends)
        yield _gauge("sessions", "Sessions whose last prefill worker is remembered.", core.sessions)
        yield _gauge("draining", "1 while the router shuts down.", core.draining)
        yield _gauge("ready_pairs", "Matching pairs that take work.", core.ready_pairs)
        yield _counter(
            "relayed_bytes",
            "Payload bytes passed on from workers to frontends.",
            reading.relayed_bytes,
        )
        yield _counter("relayed_frames", "Frames that workers sent.", reading.relayed_frames)
        yield from _workers(core.workers)
        yield from _trusts(reading.workers, core.trusts)
        yield _crossed(
            "policy_failures",
            "Choices of an operator's policy that were not followed: least_loaded made them.",
            {"phase": Phase, "reason": Failure},
            reading.policy_failures,
        )
        yield from _discovery(reading)


def _discovery(reading: ScrapedRouter) -> Iterator[Metric]:
    for name, text, numbers in (
        ("discovered", "Workers that discovery lists, connected or not.", reading.listed),
        ("served", "Workers of discovery's list that this router serves.", reading.served),
    ):
        family = GaugeMetricFamily(f"tandem_router_{name}_workers", text, labels=["phase"])
        for phase, number in numbers.items():
            family.add_metric([phase.value], number)
        yield family
    yield _gauge(
        "dividing_routers",
        "Routers that divide the decode workers, this one among them; 0: each serves all.",
        reading.routers,
    )
    yield _gauge(
        "discovery_age_seconds",
        "Time since discovery last heard from its source; 0 where discovery has no source.",
        reading.discovery_age_seconds,
    )
    errors_by_reason = {each.value: number for each, number in reading.discovery_errors.items()}
    yield _labelled(
        "discovery_errors", "Failed look-ups of workers.", "reason", errors_by_reason, Trouble
    )


def _workers(workers: Iterable[WorkerSnapshot]) -> Iterator[Metric]:
    routable = GaugeMetricFamily(
        "tandem_router_routable_workers", "Workers that some pair uses.", labels=["phase"]
    )
    for phase in Phase:
        number = sum(each.routable and each.phase is phase for each in workers)
        routable.add_metric([phase.value], number)
    yield routable
    for name, text in (
        ("open_legs", "This router's legs on the worker, each in a slot."),
        ("other_legs", "Legs of other routers, as the worker last reported."),
        ("slots", "Legs that the worker takes at once."),
        ("overdue_legs", "Cancelled legs that the worker has not closed in time."),
        ("stalled", "1 while the worker's engine has work and makes no step."),
    ):
        family = GaugeMetricFamily(f"tandem_router_worker_{name}", text, labels=["worker", "phase"])
        for worker in workers:
            family.add_metric([worker.address, worker.phase.value], getattr(worker, name))
        yield family


def _trusts(workers: Iterable[Listed], trusts: Mapping[str, TrustSnapshot]) -> Iterator[Metric]:
    labels = ["worker", "phase"]
    faults = CounterMetricFamily(
        "tandem_router_worker_faults",
        "Messages of the worker that this router could not read.",
        labels=labels,
    )
    failures = CounterMetricFamily(
        "tandem_router_worker_failures",
        "Legs that ended by the worker's own failure, and its faults.",
        labels=labels,
    )
    ejections = CounterMetricFamily(
        "tandem_router_worker_ejections",
        "How often the worker was left alone for a time, for its faults or failures.",
        labels=labels,
    )
    ejected = GaugeMetricFamily(
        "tandem_router_worker_ejected",
        "1 while the worker is ejected for its failures, or on probation.",
        labels=labels,
    )
    for listed in workers:
        values = [listed.address, listed.phase.value]
        trust = trusts.get(listed.address, UNKNOWN)
        faults.add_metric(values, trust.faults)
        failures.add_metric(values, trust.failures)
        ejections.add_metric(values, trust.ejections)
        ejected.add_metric(values, trust.reputation is not Standing.WHOLE)
    yield from (faults, failures, ejections, ejected)


def _counters(counts: Counts) -> Iterator[Metric]:
    yield _labelled("requests", "Requests by end.", "outcome", counts.requests, OUTCOMES)
    yield _labelled(
        "canaries",
        "Canaries by end; no request or leg of one is counted.",
        "outcome",
        counts.canaries,
        OUTCOMES,
    )
    yield _labelled("cancels", "Cancelled legs by reason.", "reason", counts.cancels, OUTCOMES)
    yield _labelled(
        "pair_rejected",
        "Pairs that do not match, by the first field that differs.",
        "reason",
        counts.pairs_rejected,
        _REJECTIONS,
    )
    yield _crossed("legs", "Closed legs.", {"phase": Phase, "outcome": Outcome}, counts.legs)
    yield _crossed(
        "ways",
        "Sequences that were started in both phases, by the way that they went and why.",
        {"way": Way, "reason": Reason},
        counts.ways,
    )
    yield _counter(
        "prompt_tokens", "Tokens of prompts sent to prefill workers.", counts.prompt_tokens
    )
    yield _counter(
        "expected_cached_tokens",
        "Tokens of prompts that the chosen worker's cache was thought to hold.",
        counts.cached_tokens,
    )
    yield _counter(
        "lost_hit_tokens",
        "Tokens of prompts that a cache would have had, if the prompts of their session did not"
        " differ at the same early place each time.",
        counts.lost_hit_tokens,
    )
    yield _labelled(
        "resumed",
        "Sequences to be resumed after the loss of a decode worker, by result.",
        "outcome",
        counts.resumed,
        RESUMED,
    )
    yield _counter("retries", "Further attempts of sequences on another pair.", counts.retries)
    yield _counter(
        "requeued",
        "Sequences queued again because a worker was full, or shut down, before it began.",
        counts.requeued,
    )
    yield _counter(
        "settle_overdue", "Cancelled legs that were not closed in time.", counts.settle_overdue
    )


def _labelled(
    name: str, text: str, label: str, values: Mapping[str, int], known: Iterable[str]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"tandem_router_{name}", text, labels=[label])
    for value in known:
        family.add_metric([value], values.get(value, 0))
    return family


def _crossed(
    name: str, text: str, labels: Mapping[str, type[Enum]], values: Mapping[Any, int]
) -> CounterMetricFamily:
    """A counter whose labels take every combination of their enums' members."""
    family = CounterMetricFamily(f"tandem_router_{name}", text, labels=list(labels))
    for members in itertools.product(*labels.values()):
        family.add_metric([each.value for each in members], values.get(members, 0))
    return family


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tandem_router_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"tandem_router_{name}", text, value=value)
