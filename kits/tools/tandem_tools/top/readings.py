"""What frontends, routers and workers say on their metrics ports, for `tandem top`: asked side by
side, each within its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tandem.cli.client import ApiError, Client
from tandem_tools.side_by_side import collect, start
from tandem_tools.top import scrapes
from tandem_tools.top.scrapes import EngineReading, FrontendReading

ANSWER_SECONDS = 2.0
"""Time that each asked component has to answer."""
_RUNNING: tuple[dict[str, threading.Thread], ...] = ({}, {}, {})
"""Threads that still ask a router, a worker or a frontend, by address."""


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


@dataclass(slots=True, frozen=True)
class FleetReading:
    """All of one moment, by address; of each component that did not answer, why."""

    at: float
    """Seconds of a clock that never goes back."""
    routers: Mapping[str, RouterReading | ApiError] = field(default_factory=dict)
    engines: Mapping[str, Mapping[str, EngineReading] | ApiError] = field(default_factory=dict)
    """What a worker says of each phase."""
    frontends: Mapping[str, FrontendReading | ApiError] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class FleetAddresses:
    """Metrics ports, "host:port"."""

    routers: Sequence[str] = ()
    workers: Sequence[str] = ()
    frontends: Sequence[str] = ()


def read(asked: FleetAddresses) -> FleetReading:
    """Ask all. Takes little longer than one has to answer."""
    until = time.monotonic() + ANSWER_SECONDS
    routers = start(asked.routers, _fleet_of, _RUNNING[0])
    workers = start(asked.workers, _engines_of, _RUNNING[1])
    frontends = start(asked.frontends, _frontend_of, _RUNNING[2])
    return FleetReading(
        time.monotonic(),
        collect(routers, until),
        collect(workers, until),
        collect(frontends, until),
    )


def _fleet_of(address: str) -> RouterReading:
    told = Client(address, timeout_seconds=ANSWER_SECONDS).get("/debug/fleet")
    try:
        return msgspec.convert(told, RouterReading)
    except msgspec.ValidationError as error:
        raise ApiError(f"the answer is not that of a router of this version: {error}") from error


def _engines_of(address: str) -> Mapping[str, EngineReading]:
    return scrapes.engines(_metrics_of(address))


def _frontend_of(address: str) -> FrontendReading:
    return scrapes.frontend(_metrics_of(address))


def _metrics_of(address: str) -> str:
    return Client(address, timeout_seconds=ANSWER_SECONDS).text("/metrics")
