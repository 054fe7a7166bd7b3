"""Workers that fail more often than others of their group: who is ejected, for how long, and how it
comes back.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from test_router_core import Bench

from tandem.endings import Outcome
from tandem.errors import (
    ConfigError,
    DeadlineError,
    DrainingError,
    EngineError,
    HookError,
    InternalError,
    InvalidRequestError,
    KvCorruptError,
    KvTransferError,
    ParkingFullError,
    QueueFullError,
    TandemError,
    WorkerError,
)
from tandem_router import debug, metrics
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.trust import FORGET_SECONDS, LONGEST_SECONDS, PROBES, SLOT_SECONDS
from tandem_router.core.values import Fingerprint, Phase, Standing
from tandem_router.core.worker import Worker
from tandem_router.discovery import Listed
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.links import WorkerLink
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.workers import Workers

FIRST = 10.0
"""Seconds of a first ejection."""


class HealthBench(Bench):
    """A fleet whose legs fail where a test says so; what runs elsewhere ends well."""

    def __init__(self, prefill: int = 3, decode: int = 4, **bounds: Any) -> None:
        given = {"eject_after_failures": 3, "max_retries": 0, "eject_first_seconds": FIRST}
        super().__init__(prefill, decode, **(given | bounds))
        self.first = 0

    def at(self, key: str) -> Worker:
        return self.core.state.fleet.workers[key]

    def standing(self, key: str) -> Standing:
        return self.at(key).trust.reputation

    def run(self, on: str, error: TandemError | None = None, **how: Any) -> None:
        """A request whose leg on that worker ends with that error, or as all others: well."""
        prefill, decode = self.start(on)
        mine, other = (decode, prefill) if decode.worker == on else (prefill, decode)
        if error is None:
            self.close(prefill)
            self.feed(events.LegStarted(decode.worker, decode.leg))
            self.close(decode)
        else:
            self.close(mine, Outcome.FAILED, error=error, **how)
            self.close(other, Outcome.CANCELLED)

    def start(self, *on: str) -> tuple[actions.StartLeg, actions.StartLeg]:
        """Both legs of a request that runs there: all others of those phases seem full."""
        phases = {self.at(key).phase for key in on}
        workers = [each for each in self.core.state.fleet.workers.values() if each.phase in phases]
        for each in workers:
            taken = 0 if each.key in on else each.capacity
            self.feed(events.WorkerLoad(each.key, len(each.legs) + taken))
        self.first += 1
        self.submit(self.first)
        legs = self.legs()
        for each in workers:
            self.feed(events.WorkerLoad(each.key, len(each.legs)))
        assert {*on} <= {each.worker for each in legs}
        return legs

    def fail(self, on: str, times: int = 3, error: TandemError | None = None) -> None:
        for _ in range(times):
            self.run(on, error or EngineError("it failed"))


@pytest.mark.promise("S5-208")
def test_a_worker_that_fails_far_more_often_than_its_group_gets_nothing_new() -> None:
    bench = HealthBench()
    bench.fail("decode-2")
    assert bench.standing("decode-2") is Standing.EJECTED
    for first in range(100, 106):
        bench.submit(first)
        assert bench.legs()[1].worker != "decode-2"


def test_a_few_failures_eject_nobody() -> None:
    bench = HealthBench()
    bench.fail("decode-2", 2)
    assert bench.standing("decode-2") is Standing.WHOLE


def test_failures_are_weighed_against_what_ended_well() -> None:
    bench = HealthBench(eject_ratio=0.3)
    for _ in range(7):
        bench.run("decode-2")
    bench.fail("decode-2", 2)
    bench.run("decode-2", EngineError("x"))
    assert bench.standing("decode-2") is Standing.EJECTED, "3 of 10 is 0.3"
    bench = HealthBench(eject_ratio=0.3)
    for _ in range(8):
        bench.run("decode-2")
    bench.fail("decode-2", 3)
    assert bench.standing("decode-2") is Standing.WHOLE, "3 of 11 is less"


def test_where_all_fail_alike_nobody_is_ejected() -> None:
    bench = HealthBench()
    for _ in range(5):
        for key in ("decode-0", "decode-1", "decode-2", "decode-3"):
            bench.fail(key, 1)
    assert {bench.standing(key) for key in bench.core.state.fleet.workers} == {Standing.WHOLE}


def test_a_minority_that_fails_hides_nobody_behind_itself() -> None:
    """What is usual is the median: two that fail among eight do not make failing usual."""
    bench = HealthBench(decode=8, eject_ratio=0.9)
    bench.fail("decode-0", 2)
    bench.fail("decode-1", 2)
    bench.fail("decode-0", 1)
    bench.fail("decode-1", 1)
    assert bench.standing("decode-0") is bench.standing("decode-1") is Standing.EJECTED


@pytest.mark.promise("S5-208")
@pytest.mark.parametrize(
    ("share", "out"), [(0.0, 0), (0.24, 0), (0.25, 1), (0.5, 2), (0.99, 3), (1.0, 3)]
)
def test_only_a_share_of_a_group_is_out_at_once_and_never_the_last(share: float, out: int) -> None:
    bench = HealthBench(eject_most_share=share)
    for key in ("decode-0", "decode-1", "decode-2"):
        bench.fail(key)
    bench.run("decode-3")
    if out == 3:
        bench.fail("decode-3", 9)
    standings = [bench.standing(f"decode-{index}") for index in range(4)]
    assert standings.count(Standing.EJECTED) == out


@pytest.mark.promise("S5-208")
def test_a_phase_s_only_worker_is_never_ejected() -> None:
    bench = HealthBench(decode=1, eject_most_share=1.0)
    bench.fail("decode-0", 50)
    assert bench.standing("decode-0") is Standing.WHOLE


def test_workers_of_another_group_are_no_measure() -> None:
    bench = HealthBench(decode=1, eject_most_share=1.0)
    other = Fingerprint("tiny", "2", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
    for index in (5, 6):
        bench.worker(Phase.DECODE, index, fingerprint=other)
    bench.fail("decode-0", 5)
    assert bench.standing("decode-0") is Standing.WHOLE


@pytest.mark.promise("S5-208")
def test_when_no_other_of_its_group_is_left_an_ejected_worker_is_whole_again() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    bench.feed(events.WorkerDraining("decode-0", True))
    assert [each.worker for each in bench.of(actions.WorkerReturned)] == ["decode-1"]
    bench.submit(100)
    bench.submit(101)
    assert bench.legs()[1].worker == "decode-1"
    assert bench.at("decode-1").trust.failed == 0


def test_failures_are_forgotten_with_time() -> None:
    bench = HealthBench()
    bench.fail("decode-2", 2)
    bench.feed(events.Tick(), after=2 * SLOT_SECONDS)
    bench.fail("decode-2", 2)
    assert bench.standing("decode-2") is Standing.WHOLE
    bench.feed(events.Tick(), after=SLOT_SECONDS)
    bench.fail("decode-2", 1)
    assert bench.standing("decode-2") is Standing.EJECTED, "one slot before counts"


def test_an_ejected_worker_that_comes_back_as_the_last_is_said_once_to_be_paired() -> None:
    bench = HealthBench(1, 2)
    for _ in range(3):
        bench.run("decode-1", EngineError("it broke"))
    assert bench.standing("decode-1") is Standing.EJECTED
    bench.feed(events.WorkerDown("decode-1", "gone", died=False))
    bench.feed(events.WorkerDown("decode-0", "gone", died=False))
    bench.worker(Phase.DECODE, 1)
    assert [each.worker for each in bench.of(actions.WorkerPaired)] == ["decode-1"]


def test_no_worker_is_ejected_where_the_setting_says_so() -> None:
    bench = HealthBench(eject_after_failures=0)
    bench.fail("decode-2", 20)
    assert bench.standing("decode-2") is Standing.WHOLE


# --- what counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("the client's mistake"),
        HookError("a hook raised"),
        DeadlineError("its time was over"),
        QueueFullError("it is full"),
        ParkingFullError("it keeps enough"),
        InternalError("the router's own"),
    ],
)
def test_what_is_not_the_worker_s_own_fault_is_not_counted(error: TandemError) -> None:
    bench = HealthBench()
    bench.fail("decode-2", 4, error)
    assert bench.at("decode-2").trust.ended == 0


@pytest.mark.parametrize(
    "error", [EngineError("it failed"), WorkerError("it gave up"), KvTransferError("nothing came")]
)
def test_what_is_the_worker_s_own_fault_is_counted(error: TandemError) -> None:
    bench = HealthBench()
    bench.fail("decode-2", 2, error)
    record = bench.at("decode-2").trust
    assert (record.failed, record.ended, record.failures) == (2, 2, 2)


def test_a_leg_that_is_given_up_unasked_is_counted() -> None:
    bench = HealthBench()
    _, decode = bench.start("decode-2")
    bench.close(decode, Outcome.CANCELLED)
    assert bench.at("decode-2").trust.failed == 1


def test_what_was_cancelled_is_not_counted_however_it_ends() -> None:
    bench = HealthBench()
    prefill, decode = bench.start("decode-2")
    bench.feed(events.Cancel(1, bench.first))
    bench.close(decode, Outcome.FAILED, error=EngineError("it failed"))
    bench.close(prefill, Outcome.FINISHED)
    assert bench.at("decode-2").trust.ended == bench.at("prefill-0").trust.ended == 0


def test_what_a_worker_says_that_shuts_down_is_not_counted() -> None:
    bench = HealthBench()
    _, decode = bench.start("decode-2")
    bench.feed(events.WorkerDraining("decode-2", True))
    bench.close(decode, Outcome.FAILED, error=WorkerError("it shuts down"))
    assert bench.at("decode-2").trust.ended == 0
    _, decode = bench.start("decode-1")
    bench.close(decode, Outcome.FAILED, error=DrainingError("it shuts down"), retryable=True)
    assert bench.at("decode-1").trust.ended == 0


def test_an_engine_that_died_is_counted_with_all_that_it_held() -> None:
    bench = HealthBench()
    legs = [bench.start("decode-2")[1] for _ in range(2)]
    for leg in legs:
        bench.close(leg, Outcome.FAILED, error=EngineError("it died"), worker_died=True)
    assert bench.at("decode-2").trust.failed == 2


def test_a_death_counts_for_what_had_begun_and_the_worker_comes_back_ejected() -> None:
    bench = HealthBench(eject_after_failures=2)
    legs = [bench.start("decode-2")[1] for _ in range(2)]
    bench.feed(events.WorkerDown("decode-2", "gone", unsent=frozenset({legs[1].leg})))
    bench.worker(Phase.DECODE, 2)
    assert bench.at("decode-2").trust.failed == 1, "one had not reached it"
    legs = [bench.start("decode-2")[1] for _ in range(2)]
    bench.feed(events.WorkerDown("decode-2", "gone"))
    bench.worker(Phase.DECODE, 2)
    assert [each.worker for each in bench.of(actions.WorkerEjected)] == ["decode-2"]


def test_a_stream_that_ends_in_good_order_is_no_failure() -> None:
    bench = HealthBench()
    bench.start("decode-2")
    bench.feed(events.WorkerDown("decode-2", "it ended its stream", died=False))
    bench.worker(Phase.DECODE, 2)
    assert bench.at("decode-2").trust.ended == 0


def test_output_that_cannot_be_read_is_a_failure() -> None:
    bench = HealthBench()
    for _ in range(3):
        bench.feed(events.WorkerFault("decode-2"))
    assert bench.standing("decode-2") is Standing.EJECTED


@pytest.mark.parametrize("bad", ["prefill-1", "decode-1"])
@pytest.mark.parametrize("told_by", ["prefill", "decode"])
def test_a_hand_over_that_fails_shows_which_of_its_two_workers_does_it(
    bad: str, told_by: str
) -> None:
    """Whoever of the two says so first."""
    bench = HealthBench(prefill=4, decode=4)
    partner = "decode" if bad == "prefill-1" else "prefill"
    for turn in range(4):
        prefill, decode = bench.start(bad, f"{partner}-{turn}")
        first, second = (prefill, decode) if told_by == "prefill" else (decode, prefill)
        bench.close(first, Outcome.FAILED, error=KvTransferError("it broke"))
        bench.close(second, Outcome.FAILED, error=KvTransferError("it broke"))
        assert bench.at(bad).trust.failures == turn + 1, "one hand-over, one failure"
        if bench.standing(bad) is Standing.EJECTED:
            break
    out = [key for key in bench.core.state.fleet.workers if bench.standing(key) is Standing.EJECTED]
    assert out == [bad]


def test_a_hand_over_that_is_the_last_straw_for_both_of_its_workers_ejects_both() -> None:
    bench = HealthBench(prefill=3, decode=3)
    for _ in range(3):
        prefill, decode = bench.start("prefill-1", "decode-1")
        bench.close(prefill, Outcome.FAILED, error=KvTransferError("it broke"))
        bench.close(decode, Outcome.CANCELLED)
    assert bench.standing("prefill-1") is Standing.EJECTED
    assert bench.standing("decode-1") is Standing.EJECTED
    for first in range(100, 104):
        bench.submit(first)
        assert {"prefill-1", "decode-1"}.isdisjoint(each.worker for each in bench.legs())


def test_kv_that_came_damaged_counts_for_a_prefill_worker_that_is_done() -> None:
    bench = HealthBench(prefill=2)
    prefill, decode = bench.start("prefill-1")
    bench.close(prefill)
    bench.close(decode, Outcome.FAILED, error=KvCorruptError("it is damaged"))
    record = bench.at("prefill-1").trust
    assert (record.failed, record.ended) == (1, 2)


# --- how it comes back -----------------------------------------------------------------------


@pytest.mark.promise("S5-208")
def test_after_its_time_it_gets_one_request_at_a_time() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    bench.feed(events.Tick(), after=FIRST - 0.01)
    assert bench.standing("decode-1") is Standing.EJECTED
    bench.feed(events.Tick(), after=0.02)
    assert bench.standing("decode-1") is Standing.PROBATION
    assert bench.at("decode-1").free == 1
    _, probe = bench.start("decode-1")
    assert bench.at("decode-1").free == 0
    bench.close(probe)
    assert bench.at("decode-1").free == 1


@pytest.mark.promise("S5-208")
def test_a_few_that_end_well_make_it_whole() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    bench.feed(events.Tick(), after=FIRST)
    for _ in range(PROBES - 1):
        bench.run("decode-1")
        assert bench.standing("decode-1") is Standing.PROBATION
    _, probe = bench.start("decode-1")
    bench.close(probe)
    assert [each.worker for each in bench.of(actions.WorkerReturned)] == ["decode-1"]
    record = bench.at("decode-1").trust
    assert (record.standing, record.failed) == (Standing.WHOLE, 0)


def test_a_probe_that_fails_ends_what_was_proved() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    bench.feed(events.Tick(), after=FIRST)
    for _ in range(PROBES - 1):
        bench.run("decode-1")
    bench.fail("decode-1", 1)
    bench.feed(events.Tick(), after=2 * FIRST)
    bench.run("decode-1")
    assert bench.standing("decode-1") is Standing.PROBATION


def test_a_probe_that_is_cancelled_proves_nothing() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    bench.feed(events.Tick(), after=FIRST)
    for _ in range(PROBES + 1):
        prefill, probe = bench.start("decode-1")
        bench.feed(events.Cancel(1, bench.first))
        bench.close(probe, Outcome.CANCELLED)
        bench.close(prefill, Outcome.CANCELLED)
    assert bench.standing("decode-1") is Standing.PROBATION
    assert bench.at("decode-1").free == 1


def test_what_had_begun_before_proves_nothing_either() -> None:
    bench = HealthBench(decode=2)
    old = bench.start("decode-1")[1]
    bench.fail("decode-1")
    bench.feed(events.Tick(), after=FIRST)
    bench.close(old)
    assert bench.at("decode-1").trust.passed == 0
    assert bench.standing("decode-1") is Standing.PROBATION


@pytest.mark.promise("S5-208")
def test_each_further_ejection_lasts_twice_as_long_up_to_a_bound() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    seconds = []
    for _ in range(8):
        told = bench.at("decode-1").trust
        seconds.append(told.until - told.since)
        bench.feed(events.Tick(), after=seconds[-1] + 0.01)
        bench.fail("decode-1", 1)
    assert seconds == pytest.approx([10, 20, 40, 80, 160, 320, LONGEST_SECONDS, LONGEST_SECONDS])


def test_a_worker_that_was_well_for_long_begins_anew() -> None:
    bench = HealthBench(decode=2)
    seconds = []
    for wait in (FORGET_SECONDS - 1.0, FORGET_SECONDS, 0.0):
        bench.fail("decode-1")
        told = bench.at("decode-1").trust
        seconds.append(told.until - told.since)
        bench.feed(events.Tick(), after=seconds[-1] + 0.01)
        for _ in range(PROBES):
            bench.run("decode-1")
        bench.feed(events.Tick(), after=wait)
    assert seconds == pytest.approx([FIRST, 2 * FIRST, FIRST])


def test_the_time_goes_on_while_a_worker_is_away_and_its_past_is_forgotten_at_last() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    bench.feed(events.WorkerDown("decode-1", "gone", died=False))
    bench.feed(events.Tick(), after=FIRST)
    bench.worker(Phase.DECODE, 1)
    assert bench.standing("decode-1") is Standing.PROBATION
    bench.feed(events.WorkerDown("decode-1", "gone", died=False))
    for _ in range(int(FORGET_SECONDS / SLOT_SECONDS) + 1):
        assert "decode-1" in bench.core.state.fleet.trusts
        bench.feed(events.Tick(), after=SLOT_SECONDS)
    assert "decode-1" not in bench.core.state.fleet.trusts


def test_a_probe_whose_worker_goes_away_failed() -> None:
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
    bench.feed(events.Tick(), after=FIRST)
    bench.start("decode-1")
    bench.feed(events.WorkerDown("decode-1", "gone"))
    assert [each.seconds for each in bench.of(actions.WorkerEjected)] == [2 * FIRST]
    bench.worker(Phase.DECODE, 1)
    assert bench.standing("decode-1") is Standing.EJECTED


# --- what others see of it -------------------------------------------------------------------


def test_a_retry_goes_to_a_worker_that_has_not_failed_lately() -> None:
    bench = HealthBench(prefill=2, decode=4, max_retries=1, eject_after_failures=9)
    bench.run("decode-1", EngineError("x"))
    prefill, decode = bench.start("decode-0")
    for key in ("decode-2", "decode-3"):
        bench.feed(events.WorkerLoad(key, 1))
    bench.close(decode, Outcome.FAILED, error=EngineError("x"), retryable=True)
    bench.close(prefill, Outcome.CANCELLED)
    assert bench.legs()[1].worker == "decode-2", "decode-1 is freer, and has failed"


def test_a_retry_goes_where_something_has_ended_well_lately() -> None:
    bench = HealthBench(prefill=2, decode=4, max_retries=1)
    bench.run("decode-3")
    bench.feed(events.WorkerLoad("decode-3", 1))
    prefill, decode = bench.start("decode-0")
    bench.close(decode, Outcome.FAILED, error=EngineError("x"), retryable=True)
    bench.close(prefill, Outcome.CANCELLED)
    assert bench.legs()[1].worker == "decode-3", "others are freer, and nothing is known of them"


def test_it_is_said_why_no_pair_uses_an_ejected_worker() -> None:
    bench = HealthBench(prefill=1, decode=2)
    bench.fail("decode-1")
    why = "it is ejected: 3 of the last 3 legs failed there"
    assert bench.core.refusal("decode-1") == why
    assert bench.core.refusals() == {"decode-1": why}
    snapshot = bench.core.snapshot()
    assert snapshot.ready_pairs == 1
    assert snapshot.trusts["decode-1"] == (Standing.EJECTED, 3, 3, 3, 1, 0)


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
    bench = HealthBench(decode=2, eject_after_faults=1)
    bench.fail("decode-1")
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
    bench = HealthBench(decode=2)
    bench.fail("decode-1")
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
