"""Workers whose engine has work and makes no step: they get nothing new, and what they have is lost
after a bound.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest
from test_router_core import Bench

from tandem.errors import ConfigError
from tandem.v1 import worker_pb2
from tandem_router import translate
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.values import Phase
from tandem_router.links import WorkerLink
from tandem_router.relay import Relay
from tandem_router.server import build_core

STALL, FAILOVER = 5.0, 20.0


def made(prefill: int = 1, decode: int = 2, **bounds: Any) -> Bench:
    return Bench(prefill, decode, stall_seconds=STALL, stall_failover_seconds=FAILOVER, **bounds)


def report(bench: Bench, age: float | None, worker: str = "decode-0", legs: int = 0) -> None:
    bench.feed(events.WorkerLoad(worker, legs, age))


@pytest.mark.promise("S5-210")
def test_a_worker_whose_engine_stands_gets_nothing_new_until_it_makes_a_step() -> None:
    bench = made()
    report(bench, STALL - 0.01)
    bench.submit(1)
    assert bench.legs()[1].worker == "decode-0"
    report(bench, STALL, legs=1)
    assert bench.of(actions.WorkerStalled) == [actions.WorkerStalled("decode-0", True, STALL)]
    assert bench.core.refusal("decode-0") == "its engine has work and makes no step"
    assert bench.core.snapshot().workers[1].stalled
    bench.submit(2)
    assert bench.legs()[1].worker == "decode-1"
    report(bench, STALL + 1, legs=1)
    assert not bench.done, "it is said once"
    report(bench, 0.0, legs=1)
    assert bench.of(actions.WorkerStalled) == [actions.WorkerStalled("decode-0", False, 0.0)]
    assert bench.core.refusal("decode-0") == ""


def test_what_waits_starts_when_the_engine_makes_a_step_again() -> None:
    bench = made(decode=1)
    bench.submit(1)
    report(bench, STALL, legs=1)
    bench.submit(2)
    assert not bench.of(actions.StartLeg), "no other worker is there"
    report(bench, 0.5, legs=1)
    assert len(bench.of(actions.StartLeg)) == 2


def test_an_engine_that_cannot_say_is_left_alone() -> None:
    bench = made()
    report(bench, None)
    assert not bench.of(actions.WorkerStalled)
    report(bench, STALL)
    report(bench, None)
    assert not bench.core.snapshot().workers[1].stalled


def test_a_worker_that_connects_while_its_engine_stands_gets_nothing() -> None:
    bench = made()
    profile = bench.core.state.fleet.workers["decode-0"].profile
    bench.feed(
        events.WorkerUp(
            worker="decode-0", listed_as=Phase.DECODE, profile=profile, step_age=FAILOVER
        )
    )
    bench.submit(1)
    assert bench.legs()[1].worker == "decode-1"
    report(bench, FAILOVER)
    assert not bench.of(actions.GiveUpWorker), "it holds nothing of ours"


@pytest.mark.promise("S5-211")
def test_after_a_bound_its_stream_is_given_up_and_what_showed_nothing_runs_elsewhere() -> None:
    bench = made(prefill=2, max_retries=1)
    for first in (1, 2, 3):
        bench.submit(first)
        if bench.legs()[1].worker == "decode-0":
            shown = bench.legs()[1]
    bench.feed(events.LegStarted("decode-0", shown.leg))
    report(bench, FAILOVER - 0.01, legs=2)
    assert not bench.of(actions.GiveUpWorker)
    report(bench, FAILOVER, legs=2)
    reason = "its engine has work and has made no step for 20 s"
    assert bench.of(actions.GiveUpWorker) == [actions.GiveUpWorker("decode-0", reason)]
    report(bench, FAILOVER + 1, legs=2)
    assert not bench.of(actions.GiveUpWorker), "it is said once"
    bench.feed(events.WorkerDown("decode-0", reason, died=False))
    assert bench.ends() == [(shown.command.sequence, "worker_lost")]
    assert bench.core.snapshot().counts.retries == 1


def test_both_turns_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    relay = Relay(build_core(RouterConfig()), clock=lambda: 0.0)
    profile = made().core.state.fleet.workers["decode-0"].profile
    relay.worker_up("a", WorkerLink(), listed_as=Phase.DECODE, profile=profile)
    caplog.set_level(logging.INFO)
    for age in (10.0, 0.0):
        relay.handle(events.WorkerLoad("a", 0, age))
    said: Any = caplog.records
    assert [(each.message, each.address) for each in said] == [
        ("a worker's engine has work and makes no step: it gets nothing new", "a"),
        ("a worker's engine makes steps again", "a"),
    ]


def test_a_report_without_an_age_says_nothing_of_steps() -> None:
    assert translate.step_age(worker_pb2.Load()) is None
    assert translate.step_age(worker_pb2.Load(step_age_ms=0)) == 0.0
    assert translate.step_age(worker_pb2.Load(step_age_ms=1500)) == 1.5


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
