"""What routers and workers say of themselves on their admin ports, for `tandem top`: asked side by
side, each within its time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tandem.cli.client import ApiError, Client
from tandem_tools.side_by_side import collect, start

ANSWER_SECONDS = 2.0
"""Time that each asked component has to answer."""


class WorkerSeen(msgspec.Struct, frozen=True):
    """A worker, as a router sees it."""

    address: str
    name: str
    phase: str
    connected: bool
    refused: str
    silent_seconds: float
    faults: int
    open_legs: int
    other_legs: int
    slots: int
    overdue_legs: int
    standing: str
    """whole, ejected or probation."""
    failed_legs: int
    ended_legs: int


class RouterReading(msgspec.Struct, frozen=True):
    """What a router answers on /debug/fleet."""

    queue_length: int
    queue_limit: int
    open_sequences: int
    frontends: int
    ready_pairs: int
    draining: bool
    requests: dict[str, int]
    retries: int
    workers: list[WorkerSeen]


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineReading:
    """What a worker counts of its engine, since its start or now."""

    phase: str
    open_legs: float = 0.0
    waiting_legs: float = 0.0
    tokens: float = 0.0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    kv_used_ratio: float = 0.0


@dataclass(slots=True, frozen=True)
class Readings:
    """All of one moment, by address; of each that did not answer, why."""

    at: float
    routers: Mapping[str, RouterReading | ApiError]
    engines: Mapping[str, EngineReading | ApiError]


_GAUGES = ("open_legs", "waiting_legs", "kv_used_ratio")
_COUNTERS = ("tokens", "prompt_tokens", "cached_tokens")
_SERIES = {
    **{f"tandem_worker_{name}": name for name in _GAUGES},
    **{f"tandem_worker_{name}_total": name for name in _COUNTERS},
}


def read(routers: Iterable[str], workers: Iterable[str]) -> Readings:
    """Ask all. Takes little longer than one has to answer."""
    until = time.monotonic() + ANSWER_SECONDS
    asked = start(routers, _fleet_of), start(workers, _engine_of)
    return Readings(time.monotonic(), collect(asked[0], until), collect(asked[1], until))


def engine(exposition: str) -> EngineReading:
    """A worker's figures, from its metrics as Prometheus reads them. Raises ApiError for a text
    that is none.
    """
    try:
        families = list(text_string_to_metric_families(exposition))
    except ValueError as error:
        raise ApiError("the answer is no Prometheus exposition") from error
    values: Counter[str] = Counter()
    phase = ""
    for sample in (sample for family in families for sample in family.samples):
        if field := _SERIES.get(sample.name):
            values[field] += sample.value  # type: ignore[assignment]
            phase = sample.labels.get("phase", phase)
    if not phase:
        raise ApiError("no worker's metrics are at this address")
    return EngineReading(phase=phase, **values)


def _fleet_of(address: str) -> RouterReading:
    told = Client(address, timeout_seconds=ANSWER_SECONDS).get("/debug/fleet")
    try:
        return msgspec.convert(told, RouterReading)
    except msgspec.ValidationError as error:
        raise ApiError(f"the answer is not that of a router of this version: {error}") from error


def _engine_of(address: str) -> EngineReading:
    return engine(Client(address, timeout_seconds=ANSWER_SECONDS).text("/metrics"))
