"""Logs, reports and settings of workers whose engine has work and makes no step; the core's rules
are in tests/unit/router_traces/stalls.txt.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from router_bench import Bench
from router_loads import worker_load

from tandem.errors import ConfigError
from tandem.v1 import worker_pb2
from tandem_router.config import RouterConfig
from tandem_router.core import events
from tandem_router.core.values import Phase
from tandem_router.links import WorkerLink
from tandem_router.relay import Relay
from tandem_router.server import build_core


def test_both_turns_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    relay = Relay(build_core(RouterConfig()), clock=lambda: 0.0)
    profile = Bench().core.state.fleet.workers["decode-0"].profile
    relay.worker_up("a", WorkerLink(), listed_as=Phase.DECODE, profile=profile)
    caplog.set_level(logging.INFO)
    for age in (10.0, 0.0):
        relay.handle(worker_load("a", 0, age))
    said: Any = caplog.records
    assert [(each.message, each.address) for each in said] == [
        ("a worker's engine has work and makes no step: it gets nothing new", "a"),
        ("a worker's engine makes steps again", "a"),
    ]


def test_a_report_without_an_age_says_nothing_of_steps() -> None:
    assert events.step_age(worker_pb2.Load()) is None
    assert events.step_age(worker_pb2.Load(step_age_ms=0)) == 0.0
    assert events.step_age(worker_pb2.Load(step_age_ms=1500)) == 1.5


@pytest.mark.parametrize(
    "wrong",
    [{"stall_seconds": 0.0}, {"stall_seconds": 40.0}, {"stall_failover_seconds": 9.0}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RouterConfig(**wrong)


def test_the_settings_reach_the_core() -> None:
    config = RouterConfig(stall_seconds=3.0, stall_failover_seconds=7.0)
    bounds = build_core(config).state.bounds
    assert (bounds.stall_seconds, bounds.stall_failover_seconds) == (3.0, 7.0)
