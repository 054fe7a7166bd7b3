"""Canaries of the router's core, beside tests/unit/router_traces/canaries.txt, and what the shell
does with them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from router_bench import Bench

from tandem import canary
from tandem.byte_budget import ByteBudget
from tandem.errors import ConfigError, KvTransferError, NoPairError
from tandem.v1 import common_pb2, worker_pb2
from tandem_router import relay, translate
from tandem_router.config import RouterConfig
from tandem_router.core import actions, events
from tandem_router.core.canaries import MOST_OPEN
from tandem_router.core.machine import RouterCore
from tandem_router.core.values import Bounds, Phase
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
    """A fleet of workers that have moved no KV; legs of canaries that no test has ended, by
    sequence and worker.
    """

    def __init__(self, prefill: int = 0, decode: int = 0, **bounds: Any) -> None:
        self.running: dict[int, dict[str, actions.StartLeg]] = {}
        super().__init__(prefill, decode, **bounds)

    def feed(self, *batch: events.Event, after: float = 0.0) -> list[actions.Action]:
        done = super().feed(*batch, after=after)
        for each in self.of(actions.StartLeg):
            if each.command.canary:
                self.running.setdefault(each.command.sequence, {})[each.worker] = each
        return done

    def end_all(self, sick: str) -> set[str]:
        """Every canary ends: badly where that worker runs it. Returns whom they tried."""
        tried: set[str] = set()
        while self.running:
            legs = self.running.pop(next(iter(self.running)))
            tried |= {*legs}
            prefill, decode = legs.values()
            if sick in legs:
                self.fail(decode, prefill, LOST)
            else:
                self.finish(prefill, decode)
        return tried

    def new(self, phase: Phase, index: int = 0, **profile: Any) -> str:
        return self.worker(phase, index, moved_kv=False, **profile)


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
def test_a_worker_that_fails_with_all_is_never_proved_and_the_others_are() -> None:
    fleet = Fleet()
    for index in range(3):
        fleet.new(Phase.PREFILL, index)
        fleet.new(Phase.DECODE, index)
    tries: list[float] = []
    while fleet.now < 300:
        tries += [fleet.now] * ("prefill-1" in fleet.end_all("prefill-1"))
        fleet.feed(events.Tick(), after=0.1)
    told = "it has not moved KV yet: kv_transfer_failed: no pages came"
    assert fleet.core.refusal("prefill-1") == told
    assert fleet.core.refusals() == {"prefill-1": told}
    pauses = [round(b - a) for a, b in pairwise(tries)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert {*pauses[6:]} <= {59, 60}
    trusts = fleet.core.snapshot().trusts.values()
    assert [(each.failures, each.ended) for each in trusts] == [(0, 0)] * 6


@pytest.mark.promise("S5-262")
def test_all_workers_together_run_few() -> None:
    many = Fleet()
    for index in range(MOST_OPEN + 3):
        many.new(Phase.PREFILL, index)
        many.new(Phase.DECODE, index)
    assert len(many.running) == MOST_OPEN


@pytest.mark.promise("S5-261")
def test_its_legs_are_said_to_be_its_own() -> None:
    fleet = Fleet(0, 1)
    fleet.new(Phase.PREFILL, has_hook=True)
    prefill, decode = fleet.legs()
    for each in (prefill, decode):
        command = each.command
        assert command.canary
        assert (command.destination, command.hold_output, command.parent_span) == (0, False, 0)
    assert decode.command.kv_peer == "kv-of-prefill-0"
    fleet.finish(prefill, decode)
    fleet.submit()
    assert [each.command.canary for each in fleet.legs()] == [False, False]


def test_there_is_none_where_no_memory_is_left_for_its_task() -> None:
    core = RouterCore(
        budget=ByteBudget(8),
        bounds=Bounds(),
        prefill_policy=LeastLoaded,
        decode_policy=LeastLoaded,
        new_room=lambda: 1,
        canary_task=lambda profile: b"more than six bytes",
    )
    profile = Bench().core.state.fleet.workers["prefill-0"].profile
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


@pytest.mark.promise("S5-695")
def test_a_canary_that_hangs_is_logged_with_its_pair(caplog: pytest.LogCaptureFixture) -> None:
    relay._log(actions.CanaryHangs("p:1", "d:1", 30.0))
    (line,) = caplog.records
    assert (line.levelname, line.prefill, line.decode) == ("WARNING", "p:1", "d:1")  # type: ignore[attr-defined]
    assert line.seconds == 30.0  # type: ignore[attr-defined]


@pytest.mark.promise("S5-696")
def test_no_pair_says_that_one_is_being_proved_and_for_how_long() -> None:
    fleet = Fleet(canary_seconds=300.0)
    refused = "no matching prefill and decode workers are ready"
    fleet.new(Phase.PREFILL)
    fleet.new(Phase.DECODE)
    assert _no_pair(fleet) == f"{refused}: a pair is being proved for 0 s"
    fleet.feed(events.Tick(), after=95.0)
    assert _no_pair(fleet) == f"{refused}: a pair is being proved for 95 s"
    other = fleet.submit(90, model="tiny", tokenizer_sha256="another")
    (ended,) = [each for each in other if isinstance(each, actions.EndSequence)]
    assert "proved" not in str(ended.error)
    fleet.end_all("decode-0")
    assert _no_pair(fleet) == refused


@pytest.mark.promise("S5-696")
def test_who_waits_in_vain_for_a_pair_is_told_the_same() -> None:
    fleet = Fleet(0, 1, canary_seconds=300.0, pair_wait_seconds=10.0)
    fleet.worker(Phase.PREFILL, max_sequences=4)
    fleet.submit(1, n=2)
    fleet.submit(3)  # waits for a slot
    fleet.feed(events.WorkerDown("decode-0", "it is gone"))
    fleet.new(Phase.DECODE, 1)
    fleet.feed(events.Tick(), after=11.0)
    told = {each.sequence: str(each.error) for each in fleet.of(actions.EndSequence)}
    assert told[3].endswith("within 10 seconds: a pair is being proved for 11 s")


def _no_pair(fleet: Fleet) -> str:
    """Why a request is refused now."""
    fleet.submit(len(fleet.running) + int(fleet.now) + 1000)
    (ended,) = fleet.of(actions.EndSequence)
    assert isinstance(ended.error, NoPairError)
    return ended.error.message
