"""What others see of workers that are ejected, and the settings; who is ejected, and for how long,
is in tests/unit/router_traces/health.txt.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from router_bench import Bench

from tandem.errors import ConfigError, EngineError
from tandem_router import debug, metrics
from tandem_router.config import RouterConfig
from tandem_router.core import events
from tandem_router.core.values import Phase
from tandem_router.discovery import Listed
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.links import WorkerLink
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.workers import Workers


def failed(**bounds: Any) -> Bench:
    """A fleet that has ejected decode-1 after three failures."""
    bench = Bench(3, 2, eject_after_failures=3, max_retries=0, **bounds)
    for number in (1, 2, 3):
        prefill, decode = bench.start_on(number, "decode-1")
        bench.fail(decode, prefill, EngineError("it failed"))
    return bench


def test_one_line_is_logged_at_the_ejection_and_one_at_the_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay = Relay(build_core(RouterConfig(eject_after_failures=1)), clock=lambda: 0.0)
    bench = Bench()
    for phase, key in ((Phase.DECODE, "a"), (Phase.DECODE, "b")):
        profile = bench.core.state.fleet.workers["decode-0"].profile
        relay.worker_up(key, WorkerLink(), listed_as=phase, profile=profile)
    caplog.set_level(logging.INFO)
    relay.handle(events.WorkerFault("a"))
    relay.handle(events.WorkerDraining("b", True))
    said: Any = [each for each in caplog.records if "ejected" in each.message]
    assert [(each.message, each.address) for each in said] == [
        ("worker ejected", "a"),
        ("worker no longer ejected", "a"),
    ]
    assert said[0].reason == "1 of the last 1 legs failed there"


async def test_metrics_and_the_fleet_s_page_tell_of_ejected_workers_those_away_included() -> None:
    bench = failed(eject_after_faults=1)
    relay = Relay(bench.core)
    workers = Workers(StaticDiscovery(prefill=(), decode=()), relay, silence_seconds=1)
    bench.feed(events.WorkerFault("decode-1"))
    listed = (Listed("decode-1", Phase.DECODE), Listed("new", Phase.DECODE))
    for _ in range(2):
        reading = replace(metrics.read(relay, workers), workers=listed)
        samples = {
            (sample.name, sample.labels["worker"]): sample.value
            for family in metrics.RouterCollector(lambda found=reading: found).collect()
            for sample in family.samples
            if sample.name.startswith("tandem_router_worker_") and sample.labels["phase"]
        }
        prefix = "tandem_router_worker"
        assert samples[f"{prefix}_failures_total", "decode-1"] == 4
        assert samples[f"{prefix}_faults_total", "decode-1"] == 1
        assert samples[f"{prefix}_ejections_total", "decode-1"] == 2
        assert samples[f"{prefix}_ejected", "decode-1"] == 1
        assert samples[f"{prefix}_ejected", "new"] == 0
        bench.feed(events.WorkerDown("decode-1", "gone", died=False))


async def test_the_fleet_s_page_says_how_a_worker_stands() -> None:
    bench = failed()
    relay = Relay(bench.core)
    bench.feed(events.WorkerFault("decode-1"))
    addresses = ("decode-1", "unknown")
    workers = Workers(StaticDiscovery(prefill=(), decode=addresses), relay, silence_seconds=1)
    for each in addresses:
        workers._connect(Listed(each, Phase.DECODE))
    told = json.loads(debug.fleet(relay, workers).body)["workers"]
    names = ("address", "standing", "failed_legs", "ended_legs", "faults")
    assert [tuple(each[name] for name in names) for each in told] == [
        ("decode-1", "ejected", 4, 4, 1),
        ("unknown", "whole", 0, 0, 0),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"eject_after_failures": -1},
        {"eject_ratio": 0.0},
        {"eject_ratio": 1.1},
        {"eject_first_seconds": 0.0},
        {"eject_most_share": -0.1},
        {"eject_most_share": 1.1},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RouterConfig(**wrong)


def test_the_settings_reach_the_core() -> None:
    config = RouterConfig(
        eject_after_failures=7, eject_ratio=0.4, eject_first_seconds=3.0, eject_most_share=0.2
    )
    bounds = build_core(config).state.bounds
    given = bounds.eject_after_failures, bounds.eject_ratio
    assert (*given, bounds.eject_first_seconds, bounds.eject_most_share) == (7, 0.4, 3.0, 0.2)
