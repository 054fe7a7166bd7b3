"""Canaries of the router's core: whom they prove, whom they suspect, how often they run, and what
of them shows.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from test_router_core import Bench

from tandem import canary
from tandem.byte_budget import ByteBudget
from tandem.endings import Outcome
from tandem.errors import (
    ConfigError,
    DeadlineError,
    EngineError,
    KvTransferError,
    QueueFullError,
    TandemError,
)
from tandem.v1 import common_pb2, worker_pb2
from tandem_router import translate
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events, snapshot
from tandem_router.core.canaries import MOST_OPEN
from tandem_router.core.machine import Core
from tandem_router.core.values import Bounds, Phase, Standing
from tandem_router.core.worker import Worker
from tandem_router.discovery.static import StaticDiscovery
from tandem_router.links import WorkerLink
from tandem_router.metrics import read
from tandem_router.policies import LeastLoaded
from tandem_router.relay import Relay
from tandem_router.server import build_core
from tandem_router.workers import Workers
from tandem_sglang.options import Options

LOST = KvTransferError("no pages came")


class Fleet(Bench):
    """`starts`: the legs of canaries that the last event started, by worker."""

    def __init__(self, prefill: int = 0, decode: int = 0, **bounds: Any) -> None:
        self.running: dict[int, dict[str, actions.StartLeg]] = {}
        """Legs of canaries that no test has ended, by sequence and worker."""
        super().__init__(prefill, decode, **bounds)

    def feed(self, *batch: events.Event, after: float = 0.0) -> list[actions.Action]:
        done = super().feed(*batch, after=after)
        for each in self.starts.values():
            self.running.setdefault(each.command.sequence, {})[each.worker] = each
        return done

    def end_all(self, *sick: str) -> list[set[str]]:
        """Every canary ends: badly where one of those workers runs it. Returns their pairs."""
        pairs = []
        while self.running:
            legs = self.running.pop(next(iter(self.running)))
            pairs.append({*legs})
            (self.fail if {*sick} & legs.keys() else self.succeed)(legs)
        return pairs

    def new(self, phase: Phase, index: int = 0, **profile: Any) -> str:
        """A worker that has moved no KV."""
        return self.worker(phase, index, moved_kv=False, **profile)

    def at(self, key: str) -> Worker:
        return self.core.state.fleet.workers[key]

    @property
    def starts(self) -> dict[str, actions.StartLeg]:
        return {each.worker: each for each in self.of(actions.StartLeg) if each.command.canary}

    def succeed(self, legs: dict[str, actions.StartLeg]) -> None:
        prefill, decode = legs.values()
        self.close(prefill)
        self.feed(events.LegStarted(decode.worker, decode.leg))
        self.close(decode)

    def fail(self, legs: dict[str, actions.StartLeg], error: TandemError = LOST) -> None:
        """Decode says so; prefill closes as it is asked to."""
        prefill, decode = legs.values()
        self.close(decode, Outcome.FAILED, error=error)
        done = self.done
        self.close(prefill, Outcome.CANCELLED)
        self.done = done + self.done

    def serve(self, first: int, error: TandemError | None = None) -> list[str]:
        """A client's request, to its end. Returns its workers."""
        self.submit(first)
        legs = {each.worker: each for each in self.of(actions.StartLeg) if not each.command.canary}
        if error is None:
            self.succeed(legs)
        else:
            self.fail(legs, error)
        return [*legs]

    def until_tried(self, seconds: float = 100.0) -> dict[str, actions.StartLeg]:
        """Let time pass until a canary starts."""
        since = self.now
        while not self.starts and self.now - since < seconds:
            self.feed(events.Tick(), after=0.1)
        return self.starts


# --- unproved workers -----------------------------------------------------------------------------


@pytest.mark.promise("S5-260")
def test_new_workers_get_no_request_before_kv_has_moved() -> None:
    fleet = Fleet()
    fleet.new(Phase.PREFILL)
    assert fleet.starts == {}
    fleet.new(Phase.DECODE)
    legs = fleet.starts
    assert {*legs} == {"prefill-0", "decode-0"}
    assert fleet.of(actions.WorkerPaired) == []
    assert fleet.core.refusal("prefill-0") == "it has not moved KV yet"
    fleet.submit()
    assert fleet.ends() == [(1, "no_pair")]
    fleet.succeed(legs)
    assert {each.worker for each in fleet.of(actions.WorkerPaired)} == {*legs}
    assert [each.models[0].ready_pairs for each in fleet.of(actions.FleetChanged)][-1] == 1
    assert fleet.core.refusal("prefill-0") == ""
    fleet.serve(2)
    assert fleet.ends() == []


@pytest.mark.promise("S5-260")
def test_neither_is_proved_by_half_of_it() -> None:
    """Prefill's end says that it was handed over, decode's start that it has come: what proves both
    is a token that decode made of it.
    """
    fleet = Fleet()
    fleet.new(Phase.PREFILL)
    fleet.new(Phase.DECODE)
    prefill, decode = fleet.starts.values()
    fleet.close(prefill)
    fleet.feed(events.LegStarted(decode.worker, decode.leg))
    assert fleet.of(actions.WorkerPaired) == []
    fleet.close(decode, Outcome.TERMINATED, reason="a hook that is none")
    assert fleet.of(actions.WorkerPaired) == []
    assert [each.reason for each in fleet.of(actions.CanaryFailed)] == ["a hook ended it"]


@pytest.mark.promise("S5-260")
def test_who_has_moved_kv_or_takes_no_canaries_is_asked_for_none() -> None:
    fleet = Fleet(1, 1)
    assert fleet.of(actions.WorkerPaired)
    described = worker_pb2.WorkerDescription(
        phase=common_pb2.PHASE_DECODE, limits=worker_pb2.Limits(context_length=9, vocabulary=9)
    )
    assert translate.profile(described).moved_kv
    described.load.moved_kv = False
    assert not translate.profile(described).moved_kv
    described.load.moved_kv = True
    assert translate.profile(described).moved_kv


@pytest.mark.promise("S5-260", "S5-262")
def test_what_another_router_has_proved_counts_here_and_at_once() -> None:
    fleet = Fleet()
    fleet.new(Phase.PREFILL)
    fleet.new(Phase.DECODE)
    fleet.fail(fleet.starts)
    fleet.feed(events.WorkerLoad("prefill-0", 0, None, True))
    assert fleet.at("decode-0").trust.unproved
    assert fleet.of(actions.WorkerPaired) == []
    fleet.feed(events.WorkerLoad("decode-0", 0, None, True))
    assert {each.worker for each in fleet.of(actions.WorkerPaired)} == {"prefill-0", "decode-0"}
    assert fleet.until_tried(5) == {}
    fleet.serve(1)


@pytest.mark.promise("S5-260")
def test_without_canaries_every_worker_counts_as_proved() -> None:
    fleet = Fleet(canary_seconds=0.0)
    fleet.new(Phase.PREFILL)
    fleet.new(Phase.DECODE)
    assert fleet.starts == {}
    assert {each.worker for each in fleet.of(actions.WorkerPaired)} == {"prefill-0", "decode-0"}
    fleet.serve(1, LOST)
    assert fleet.until_tried(5) == {}


@pytest.mark.promise("S5-264")
def test_a_retry_waits_for_a_worker_that_is_being_proved() -> None:
    fleet = Fleet(1, 1)
    fleet.submit()
    waits = fleet.legs()
    fleet.new(Phase.DECODE, 1)
    canary = fleet.starts
    assert {*canary} == {"prefill-0", "decode-1"}
    fleet.close(waits[1], Outcome.FAILED, error=EngineError("it broke"), retryable=True)
    fleet.close(waits[0], Outcome.CANCELLED)
    assert fleet.ends() == []
    fleet.submit(2)
    assert {each.worker for each in fleet.legs()} == {"prefill-0", "decode-0"}, "others pass it"
    fleet.succeed(canary)
    assert [(each.command.sequence, each.worker) for each in fleet.legs()] == [
        (1, "prefill-0"),
        (1, "decode-1"),
    ]


@pytest.mark.promise("S5-264")
@pytest.mark.parametrize("how", ["is never proved", "goes", "drains", "stands"])
def test_a_retry_waits_no_longer_than_for_any_pair(how: str) -> None:
    fleet = Fleet(1, 1, pair_wait_seconds=5.0, stall_seconds=1.0)
    fleet.submit()
    prefill, decode = fleet.legs()
    fleet.new(Phase.DECODE, 1)
    fleet.close(decode, Outcome.FAILED, error=EngineError("it broke"), retryable=True)
    fleet.close(prefill, Outcome.CANCELLED)
    if how == "is never proved":
        fleet.feed(events.Tick(), after=4.9)
        assert fleet.ends() == []
        fleet.feed(events.Tick(), after=0.2)
    elif how == "goes":
        fleet.feed(events.WorkerDown("decode-1", "it went"))
    elif how == "drains":
        fleet.feed(events.WorkerDraining("decode-1", True))
    else:
        fleet.feed(events.WorkerLoad("decode-1", 1, step_age=2.0))
    assert fleet.ends() == [(1, "engine_error")]


@pytest.mark.promise("S5-264")
def test_a_retry_waits_for_none_of_another_make() -> None:
    fleet = Fleet(1, 1)
    fleet.submit()
    _, decode = fleet.legs()
    other = fleet.at("decode-0").profile.fingerprint._replace(kv_layout="another")
    fleet.new(Phase.DECODE, 1, fingerprint=other)
    fleet.new(Phase.PREFILL, 1, fingerprint=other)
    fleet.close(decode, Outcome.FAILED, error=EngineError("it broke"), retryable=True)
    assert fleet.ends() == [(1, "engine_error")]


@pytest.mark.promise("S5-260")
def test_a_new_worker_is_tried_with_the_least_loaded_that_is_whole() -> None:
    fleet = Fleet(1, 3, eject_after_failures=1, eject_first_seconds=1.0, max_retries=0)
    _, ejected = fleet.serve(1, EngineError("it broke"))
    assert ejected == "decode-0"
    fleet.feed(events.WorkerLoad("decode-1", 1))
    fleet.feed(events.WorkerLoad("decode-2", 0), after=1.1)
    assert fleet.at("decode-0").trust.reputation is Standing.PROBATION
    fleet.new(Phase.PREFILL, 9)
    assert {*fleet.starts} == {"prefill-9", "decode-2"}


@pytest.mark.promise("S5-260", "S5-262")
def test_a_worker_that_fails_with_all_is_never_proved_and_the_others_are() -> None:
    fleet = Fleet()
    for index in range(3):
        fleet.new(Phase.PREFILL, index)
        fleet.new(Phase.DECODE, index)
    tries: list[float] = []
    while fleet.now < 300:
        tries += [fleet.now] * ({"prefill-1"} <= set().union(*fleet.end_all("prefill-1")))
        fleet.feed(events.Tick(), after=0.1)
    unproved = [key for key, each in fleet.core.state.fleet.workers.items() if each.trust.unproved]
    assert unproved == ["prefill-1"]
    told = "it has not moved KV yet: kv_transfer_failed: no pages came"
    assert fleet.core.refusal("prefill-1") == fleet.core.refusals()["prefill-1"] == told
    pauses = [round(b - a) for a, b in pairwise(tries)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert {*pauses[6:]} <= {59, 60}
    assert fleet.at("prefill-1").trust.failures == 0
    assert all(each.trust.ended == 0 for each in fleet.core.state.fleet.workers.values())


@pytest.mark.promise("S5-262")
def test_one_that_failed_is_tried_with_another() -> None:
    fleet = Fleet(0, 3)
    fleet.new(Phase.PREFILL)
    partners = []
    for _ in range(4):
        legs = fleet.starts or fleet.until_tried()
        partners.append(next(key for key in legs if key != "prefill-0"))
        fleet.fail(legs)
    assert partners == ["decode-0", "decode-1", "decode-2", "decode-0"]


@pytest.mark.promise("S5-262")
def test_a_new_worker_does_not_wait_for_the_pause_of_a_partner() -> None:
    fleet = Fleet()
    fleet.new(Phase.PREFILL, 0)
    fleet.new(Phase.DECODE, 0)
    for _ in range(5):
        fleet.fail(fleet.starts or fleet.until_tried())
    fleet.new(Phase.PREFILL, 1)
    assert {*fleet.starts} == {"prefill-1", "decode-0"}
    fleet.succeed(fleet.starts)
    assert {each.worker for each in fleet.of(actions.WorkerPaired)} == {"prefill-1", "decode-0"}


@pytest.mark.promise("S5-262")
def test_a_worker_runs_one_at_a_time_and_all_together_run_few() -> None:
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL, 0)
    first = fleet.starts
    fleet.new(Phase.PREFILL, 1)
    assert fleet.starts == {}
    fleet.succeed(first)
    assert {*fleet.starts} == {"prefill-1", "decode-0"}
    many = Fleet()
    for index in range(MOST_OPEN + 3):
        many.new(Phase.PREFILL, index)
        many.new(Phase.DECODE, index)
    state = many.core.state
    assert len({each.sequence for each in state.legs.values()}) == MOST_OPEN


@pytest.mark.promise("S5-262")
def test_it_takes_a_slot_before_whoever_waits_and_never_one_too_many() -> None:
    fleet = Fleet(1, 1)
    for first in (1, 2, 3):
        fleet.submit(first)
    fleet.new(Phase.PREFILL, 7)
    assert fleet.starts == {}
    decode = next(each for each in fleet.core.state.legs.values() if each.worker.key == "decode-0")
    prefill = decode.sequence.prefill
    assert prefill is not None
    fleet.feed(events.LegClosed("prefill-0", prefill.number, Outcome.FINISHED))
    fleet.feed(events.LegClosed("decode-0", decode.number, Outcome.FINISHED))
    assert {*fleet.starts} == {"prefill-7", "decode-0"}
    assert [each for each in fleet.of(actions.StartLeg) if not each.command.canary] == []


@pytest.mark.promise("S5-262")
def test_one_that_hangs_ends_at_its_deadline() -> None:
    fleet = Fleet(canary_seconds=5.0)
    fleet.new(Phase.PREFILL)
    fleet.new(Phase.DECODE)
    legs = fleet.starts
    assert {each.command.timeout_ms for each in legs.values()} == {5000}
    fleet.feed(events.Tick(), after=5.0)
    assert {each.leg for each in fleet.of(actions.CancelLeg)} == {
        each.leg for each in legs.values()
    }
    (failed,) = fleet.of(actions.CanaryFailed)
    assert failed.reason.startswith(DeadlineError.code)


@pytest.mark.promise("S5-262")
@pytest.mark.parametrize("how", ["drains", "goes", "is full", "stalls"])
def test_a_partner_that_is_lost_to_it_costs_no_more_than_a_pause(how: str) -> None:
    fleet = Fleet(0, 2)
    fleet.new(Phase.PREFILL)
    legs = fleet.starts
    partner = next(key for key in legs if key != "prefill-0")
    prefill, decode = legs.values()
    if how == "drains":
        fleet.feed(events.WorkerDraining(partner, True))
        assert {each.leg for each in fleet.of(actions.CancelLeg)} == {prefill.leg, decode.leg}
        fleet.close(decode, Outcome.CANCELLED)
    elif how == "goes":
        fleet.feed(events.WorkerDown(partner, "crashed"))
    elif how == "is full":
        fleet.close(decode, Outcome.FAILED, error=QueueFullError("full"), retryable=True)
    else:
        fleet.feed(events.WorkerLoad(partner, 1, 11.0))
        fleet.close(decode, Outcome.FAILED, error=EngineError("it stood"))
    fleet.close(prefill, Outcome.CANCELLED)
    again = fleet.until_tried()
    assert {*again} == {"prefill-0", "decode-1" if partner == "decode-0" else "decode-0"}
    fleet.succeed(again)
    assert not fleet.at("prefill-0").trust.unproved


@pytest.mark.promise("S5-262")
def test_a_worker_that_does_not_close_a_canary_s_leg_is_tried_all_the_same() -> None:
    """Its slot stays taken, as a client's would."""
    fleet = Fleet(settle_seconds=5.0)
    fleet.new(Phase.DECODE)
    fleet.new(Phase.DECODE, 1)
    fleet.new(Phase.PREFILL, max_sequences=3)
    for left in (2, 1):
        legs = fleet.starts
        decode = next(each for key, each in legs.items() if key != "prefill-0")
        fleet.close(decode, Outcome.FAILED, error=LOST)
        assert fleet.until_tried(4.5) == {}
        assert {"prefill-0"} < fleet.until_tried(2.0).keys()
        assert fleet.at("prefill-0").overdue == 3 - left
    fleet.close(legs["prefill-0"], Outcome.CANCELLED)
    assert fleet.at("prefill-0").overdue == 1
    fleet.succeed(fleet.running.popitem()[1])
    assert fleet.core.refusal("prefill-0") == ""


@pytest.mark.promise("S5-262")
def test_a_worker_that_is_full_again_and_again_has_not_failed() -> None:
    """Several routers may take the last slot from each other."""
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL)
    for _ in range(6):
        legs, since = fleet.starts or fleet.until_tried(), fleet.now
        prefill, decode = legs.values()
        fleet.close(prefill, Outcome.FAILED, error=QueueFullError("full"), retryable=True)
        assert fleet.of(actions.CanaryFailed) == []
        fleet.close(decode, Outcome.CANCELLED)
        fleet.feed(events.WorkerLoad("prefill-0", 0))
        fleet.until_tried()
        assert 0.4 < fleet.now - since < 1.2
    assert fleet.core.refusal("prefill-0") == "it has not moved KV yet"


@pytest.mark.promise("S5-262")
def test_a_worker_that_drains_or_stalls_is_not_tried_until_it_can_be() -> None:
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL, draining=True)
    assert fleet.starts == {}
    fleet.feed(events.WorkerLoad("prefill-0", 0, 20.0))
    fleet.feed(events.WorkerDraining("prefill-0", False))
    assert fleet.starts == {}
    fleet.feed(events.WorkerLoad("prefill-0", 0, 0.0))
    assert {*fleet.starts} == {"prefill-0", "decode-0"}


@pytest.mark.promise("S5-262")
def test_a_slot_that_other_routers_give_back_is_for_a_canary() -> None:
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL, other_legs=2)
    assert fleet.starts == {}
    fleet.feed(events.WorkerLoad("prefill-0", 1))
    assert {*fleet.starts} == {"prefill-0", "decode-0"}


@pytest.mark.promise("S5-262")
def test_an_engine_that_dies_of_a_canary_ends_it_with_its_own_error() -> None:
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL)
    prefill, decode = fleet.starts.values()
    died = EngineError("the engine died")
    fleet.close(prefill, Outcome.FAILED, error=died, retryable=True, worker_died=True)
    assert [each.leg for each in fleet.of(actions.CancelLeg)] == [decode.leg]
    assert [each.reason for each in fleet.of(actions.CanaryFailed)] == [
        "engine_error: the engine died"
    ]


def test_one_that_connects_anew_in_the_midst_is_tried_anew() -> None:
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL)
    decode = fleet.starts["decode-0"]
    fleet.new(Phase.PREFILL)
    assert fleet.starts == {}  # its partner has not closed the first one
    fleet.close(decode, Outcome.CANCELLED)
    fleet.until_tried(2)
    assert {*fleet.starts} == {"prefill-0", "decode-0"}


def test_a_router_that_drains_ends_its_canaries_and_starts_none() -> None:
    fleet = Fleet()
    fleet.new(Phase.PREFILL)
    fleet.new(Phase.DECODE)
    legs = fleet.starts
    fleet.feed(events.Drain())
    assert {each.leg for each in fleet.of(actions.CancelLeg)} == {
        each.leg for each in legs.values()
    }
    assert fleet.of(actions.CanaryFailed) == []
    assert not fleet.core.idle
    for each in legs.values():
        fleet.close(each, Outcome.CANCELLED)
    assert fleet.core.idle
    fleet.new(Phase.PREFILL, 1)
    assert fleet.until_tried(5) == {}


def test_workers_of_another_make_or_phase_are_no_partners() -> None:
    fleet = Fleet()
    fleet.new(Phase.PREFILL)
    mine = fleet.at("prefill-0").profile.fingerprint
    fleet.new(Phase.DECODE, fingerprint=mine._replace(kv_layout="another"))
    assert fleet.starts == {}
    assert fleet.core.refusal("prefill-0").startswith("kv_layout is")
    assert any(each.startswith("kv_layout is") for each in fleet.core.refusals().values())


# --- suspects -------------------------------------------------------------------------------------


@pytest.mark.promise("S5-263")
def test_a_worker_that_fails_with_everybody_is_ejected_for_canaries() -> None:
    fleet = Fleet(3, 3, eject_after_failures=4, max_retries=0)
    sick, _ = fleet.serve(1, LOST)
    while fleet.at(sick).trust.reputation is Standing.WHOLE and fleet.now < 60:
        fleet.feed(events.Tick(), after=0.1)
        fleet.end_all(sick)
    assert fleet.at(sick).used_as is Standing.EJECTED
    others = [each for key, each in fleet.core.state.fleet.workers.items() if key != sick]
    assert all(each.trust.reputation is Standing.WHOLE for each in others)
    assert max(each.trust.failures for each in others) < 4
    assert fleet.until_tried(5) == {}  # it proves itself with requests, once its time is over


@pytest.mark.promise("S5-263")
def test_a_hand_over_that_failed_is_tried_with_others_after_a_pause_and_once() -> None:
    fleet = Fleet(2, 2, max_retries=0)
    pair = fleet.serve(1, LOST)
    fleet.feed(events.Tick(), after=0.9)
    assert fleet.starts == {}
    fleet.serve(2)
    fleet.feed(events.Tick(), after=0.2)
    tried = [fleet.of(actions.StartLeg)[at : at + 2] for at in (0, 2)]
    assert all(len({each.worker for each in legs} & {*pair}) == 1 for legs in tried)
    before = {key: fleet.at(key).trust.ended for key in pair}
    for legs in tried:
        fleet.succeed({each.worker: each for each in legs})
    assert {key: fleet.at(key).trust.ended for key in pair} == {
        key: count + 1 for key, count in before.items()
    }
    assert fleet.until_tried(5) == {}
    assert all(
        each.trust.reputation is Standing.WHOLE for each in fleet.core.state.fleet.workers.values()
    )


@pytest.mark.promise("S5-263")
@pytest.mark.parametrize("error", [EngineError("it broke"), DeadlineError("late")])
def test_what_is_no_hand_over_asks_for_no_canary(error: TandemError) -> None:
    fleet = Fleet(2, 2, max_retries=0)
    fleet.serve(1, error)
    assert fleet.until_tried(5) == {}


@pytest.mark.promise("S5-263")
def test_who_is_suspected_goes_on_serving() -> None:
    fleet = Fleet(1, 1, max_retries=0)
    fleet.serve(1, LOST)
    assert {*fleet.until_tried()} == {"prefill-0", "decode-0"}
    assert fleet.serve(2) == ["prefill-0", "decode-0"]


# --- who hears of it ------------------------------------------------------------------------------


@pytest.mark.promise("S5-261")
@pytest.mark.parametrize("error", [None, LOST])
def test_nothing_of_a_request_shows_of_it(error: TandemError | None) -> None:
    fleet = Fleet()
    fleet.new(Phase.PREFILL)
    fleet.new(Phase.DECODE)
    done = [*fleet.done]
    legs = fleet.starts
    if error is None:
        fleet.succeed(legs)
    else:
        fleet.fail(legs, error)
    done += fleet.done
    told = (actions.EndSequence, actions.RequestEnded, actions.SequenceTraced, actions.GiveVoucher)
    assert [each for each in done if isinstance(each, told)] == []
    counts = snapshot.take(fleet.core.state).counts
    assert [*counts.requests, *counts.legs, *counts.cancels] == []
    assert (counts.retries, counts.requeued, counts.queue_seconds.total) == (0, 0, 0)
    assert dict(counts.canaries) == {"finished" if error is None else error.code: 1}
    assert fleet.core.state.open_sequences == 0


@pytest.mark.promise("S5-261")
def test_its_legs_are_said_to_be_its_own() -> None:
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL, has_hook=True)
    prefill, decode = fleet.starts.values()
    for each in (prefill, decode):
        command = each.command
        assert command.canary
        assert (command.destination, command.hold_output, command.parent_span) == (0, False, 0)
    assert decode.command.kv_peer == "kv-of-prefill-0"
    fleet.succeed(fleet.starts)
    fleet.submit()
    assert [each.command.canary for each in fleet.legs()] == [False, False]


@pytest.mark.promise("S5-261")
def test_a_worker_that_dies_blames_no_client_for_a_canary_and_no_canary_for_good() -> None:
    """The canary may have been it, so the client's request may risk one further worker."""
    fleet = Fleet(1, 2)
    fleet.new(Phase.PREFILL, 9)
    canary_at = next(key for key in fleet.starts if key.startswith("decode"))
    fleet.feed(events.WorkerLoad("decode-0" if canary_at == "decode-1" else "decode-1", 2))
    fleet.submit(1, trace_id="client")
    assert {each.worker for each in fleet.of(actions.StartLeg)} == {"prefill-0", canary_at}
    fleet.feed(events.WorkerDown(canary_at, "crashed"))
    (died,) = fleet.of(actions.WorkerDied)
    assert [each.submit.trace_id for each in died.suspects] == ["client"]
    assert fleet.ends() == []
    alone = Fleet(0, 1)
    alone.new(Phase.PREFILL)
    alone.feed(events.WorkerDown("decode-0", "crashed"))
    assert alone.of(actions.WorkerDied) == []


def test_there_is_none_where_no_memory_is_left_for_its_task() -> None:
    core = Core(
        budget=ByteBudget(8),
        bounds=Bounds(),
        prefill_policy=LeastLoaded,
        decode_policy=LeastLoaded,
        new_room=lambda: 1,
        canary_task=lambda profile: b"more than six bytes",
    )
    profile = Fleet(1).at("prefill-0").profile
    for phase in Phase:
        mine = replace(profile, phase=phase, moved_kv=False)
        done = core.handle(0.0, [events.WorkerUp(worker=phase, listed_as=phase, profile=mine)])
        assert [each for each in done if isinstance(each, actions.StartLeg)] == []
    assert core.budget.held == 0


# --- the shell ------------------------------------------------------------------------------------


def _link(relay: Relay, phase: int, address: str) -> WorkerLink:
    described = worker_pb2.WorkerDescription(
        name=address,
        phase=phase,  # type: ignore[arg-type]
        fingerprint=common_pb2.Fingerprint(model="m"),
        limits=worker_pb2.Limits(max_sequences=2, context_length=99, vocabulary=99),
        load=worker_pb2.Load(moved_kv=False),
    )
    link, profile = WorkerLink(), translate.profile(described)
    relay.worker_up(address, link, listed_as=profile.phase, profile=profile)
    return link


@pytest.mark.promise("S5-261")
async def test_a_relay_starts_it_drops_its_output_and_logs_its_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay = Relay(build_core(RouterConfig()))
    links = {
        address: _link(relay, phase, address)
        for address, phase in (("p:1", common_pb2.PHASE_PREFILL), ("d:1", common_pb2.PHASE_DECODE))
    }
    commands = {address: link._take() for address, link in links.items()}
    starts = {address: command.start[0] for address, command in commands.items() if command}
    assert {*starts} == {"p:1", "d:1"}
    for start in starts.values():
        canary.check(start, common_pb2.Task.FromString(start.task))
    payload = common_pb2.TokenColumns(sequence=[starts["d:1"].sequence]).SerializeToString()
    envelope = worker_pb2.Envelope(destination=0, payload=payload)
    caplog.set_level(logging.INFO)
    relay.frame("d:1", worker_pb2.WorkerFrame(envelopes=[envelope]))
    assert (relay.core.snapshot().trusts["d:1"].faults, relay.relayed_bytes) == (0, 0)
    assert caplog.records == []
    closed = worker_pb2.LegClosed(
        outcome=worker_pb2.LegClosed.OUTCOME_FAILED, error=LOST.to_proto()
    )
    event = worker_pb2.LegEvent(leg=starts["d:1"].leg, closed=closed)
    relay.frame("d:1", worker_pb2.WorkerFrame(events=[event]))
    (line,) = caplog.records
    assert (line.levelname, line.prefill, line.decode) == ("WARNING", "p:1", "d:1")  # type: ignore[attr-defined]
    assert line.reason == "kv_transfer_failed: no pages came"  # type: ignore[attr-defined]
    workers = Workers(StaticDiscovery(prefill=(), decode=()), relay, silence_seconds=9.0)
    assert read(relay, workers).core.counts.canaries == {"kv_transfer_failed": 1}


def test_the_setting_is_seconds() -> None:
    assert build_core(RouterConfig(canary_seconds=7)).state.bounds.canary_seconds == 7
    with pytest.raises(ConfigError, match="canary_seconds"):
        RouterConfig(canary_seconds=-1)


@pytest.mark.promise("S5-473")
def test_a_canary_may_take_longer_than_the_first_hand_over_of_an_engine_may() -> None:
    """Each worker's first hand-over is a canary's, and the engine knows why it does not end."""
    first = Options().first_handover_timeout_seconds
    assert RouterConfig().canary_seconds > first
    assert Bounds().canary_seconds == RouterConfig().canary_seconds
