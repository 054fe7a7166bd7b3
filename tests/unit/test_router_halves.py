"""The router's core with requests of one phase: by themselves, and among others in every order."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest
from test_router_core import FINGERPRINT, Bench

from tandem.endings import Outcome
from tandem.errors import (
    DrainingError,
    EngineError,
    ParkingFullError,
    QueueFullError,
    VoucherError,
)
from tandem_router.core import actions, events
from tandem_router.core.values import Phase, Voucher

DIGEST = bytes(32)
SEEDS = range(80)
STEPS = 120


def bench(prefill: int = 1, decode: int = 1, **bounds: Any) -> Bench:
    made = Bench(0, 0, **bounds)
    for index in range(prefill):
        made.worker(Phase.PREFILL, index, parks=True)
    for index in range(decode):
        made.worker(Phase.DECODE, index)
    return made


def parked(leg: actions.StartLeg) -> events.LegParked:
    return events.LegParked(
        worker=leg.worker, leg=leg.leg, token_ids=(7,), task_digest=DIGEST, lease_seconds=60.0
    )


def voucher(b: Bench, first: int = 1) -> Voucher:
    """What a context-only request leaves."""
    b.submit(first, context_only=True)
    (leg,) = b.of(actions.StartLeg)
    b.feed(parked(leg))
    b.close(leg)
    (given,) = b.of(actions.GiveVoucher)
    return given.voucher


@pytest.mark.promise("S2-082")
def test_a_context_only_request_is_a_prefill_leg_and_leaves_a_voucher() -> None:
    b = bench()
    b.submit(context_only=True)
    (leg,) = b.of(actions.StartLeg)
    assert leg.worker == "prefill-0"
    assert (leg.command.context_only, leg.command.hold_output) == (True, False)
    b.feed(parked(leg))
    assert not b.done
    b.close(leg)
    (given,) = b.of(actions.GiveVoucher)
    assert given.voucher == Voucher(leg.command.room, "kv-of-prefill-0", "tiny", DIGEST, (7,))
    assert given.expires_at == b.now + 60
    assert b.ends() == []
    assert b.cancelled() == []
    assert b.at_rest()


@pytest.mark.promise("S2-082")
def test_a_generation_only_request_is_a_decode_leg_in_the_room_of_the_parked_kv() -> None:
    b = bench()
    found = voucher(b)
    b.submit(2, voucher=found)
    (leg,) = b.of(actions.StartLeg)
    assert leg.worker == "decode-0"
    told = leg.command.room, leg.command.kv_peer, leg.command.task_digest, leg.command.hold_output
    assert told == (found.room, "kv-of-prefill-0", DIGEST, False)
    b.feed(events.LegStarted(leg.worker, leg.leg))
    b.close(leg)
    assert b.ends() == []
    assert b.at_rest()


def test_it_goes_to_the_workers_that_can_read_the_kv() -> None:
    b = bench(decode=0)
    b.worker(Phase.DECODE, 1)
    other = FINGERPRINT._replace(dtype="f16")
    b.worker(Phase.DECODE, 0, fingerprint=other)
    b.worker(Phase.PREFILL, 1, fingerprint=other, parks=True)
    readers = {"kv-of-prefill-0": "decode-1", "kv-of-prefill-1": "decode-0"}
    found = []
    for first in (1, 3):
        b.submit(first, context_only=True)
        (leg,) = b.of(actions.StartLeg)
        b.feed(parked(leg))
        found.append(leg)
    assert {leg.worker for leg in found} == {"prefill-0", "prefill-1"}
    for leg in found:
        b.close(leg)
        (given,) = b.of(actions.GiveVoucher)
        b.submit(10 + leg.leg, voucher=given.voucher)
        (decode,) = b.of(actions.StartLeg)
        assert decode.worker == readers[given.voucher.kv_peer]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model": "other"}, VoucherError.code),
        ({"kv_peer": "kv-of-nobody"}, VoucherError.code),
        ({"kv_peer": "kv-of-decode-0"}, VoucherError.code),
    ],
)
def test_a_voucher_of_another_model_or_of_a_worker_that_is_gone_is_refused(
    change: dict[str, Any], code: str
) -> None:
    b = bench()
    b.submit(2, voucher=voucher(b)._replace(**change))
    assert b.ends() == [(2, code)]
    assert b.at_rest()


@pytest.mark.promise("S5-206")
@pytest.mark.parametrize("named", [False, True])
def test_parked_kv_is_read_for_token_ids_of_its_tokenizer_alone(named: bool) -> None:
    b = bench()
    other = FINGERPRINT._replace(tokenizer_sha256="new")
    for index in range(5, 7):
        b.worker(Phase.PREFILL, index, fingerprint=other)
        b.worker(Phase.DECODE, index, fingerprint=other)
    b.submit(1, context_only=True, tokenizer_sha256="sha")
    (leg,) = b.of(actions.StartLeg)
    b.feed(parked(leg))
    b.close(leg)
    (given,) = b.of(actions.GiveVoucher)
    if named:
        b.submit(2, voucher=given.voucher, tokenizer_sha256="new")
        assert b.ends() == [(2, "voucher_refused")]
    b.submit(3, voucher=given.voucher)
    assert [each.worker for each in b.of(actions.StartLeg)] == ["decode-0"]


def test_a_voucher_that_is_being_used_is_refused() -> None:
    b = bench()
    found = voucher(b)
    b.submit(2, voucher=found)
    (leg,) = b.of(actions.StartLeg)
    b.submit(3, voucher=found)
    assert b.ends() == [(3, VoucherError.code)]
    b.close(leg)
    assert b.at_rest()


def test_of_two_that_wait_with_one_voucher_the_second_is_refused_when_its_turn_comes() -> None:
    b = bench()
    found = voucher(b)
    for first in (2, 3):
        b.submit(first)
    running = [leg for leg in b.core.state.legs.values() if leg.phase is Phase.DECODE]
    for first in (4, 5):
        b.submit(first, voucher=found)
        assert b.ends() == []
    b.feed(events.LegClosed(running[0].worker.key, running[0].number, Outcome.FINISHED))
    assert [each.command.sequence for each in b.of(actions.StartLeg)] == [4]
    assert b.ends() == [(5, VoucherError.code)]


@pytest.mark.parametrize("fields", [{"context_only": True}, {"voucher": "of"}])
def test_a_request_of_one_phase_has_one_output(fields: dict[str, Any]) -> None:
    b = bench()
    if "voucher" in fields:
        fields = {"voucher": voucher(b)}
    b.submit(2, n=2, **fields)
    assert {code for _, code in b.ends()} == {"invalid_request"}


def test_no_worker_that_parks_refuses_by_name() -> None:
    b = Bench()
    b.submit(context_only=True)
    assert b.ends() == [(1, "unsupported_parameter")]


@pytest.mark.parametrize("first_hook", [False, True])
@pytest.mark.parametrize("second_hook", [False, True])
@pytest.mark.parametrize("classifiers", [False, True])
def test_what_only_decode_judges_is_not_shown_by_prefill(
    first_hook: bool, second_hook: bool, classifiers: bool
) -> None:
    b = Bench(0, 0)
    b.worker(Phase.PREFILL, parks=True, has_hook=first_hook)
    b.worker(Phase.DECODE, has_hook=second_hook or classifiers, has_classifiers=classifiers)
    b.submit(context_only=True)
    refused = classifiers or (second_hook and not first_hook)
    assert b.ends() == ([(1, "unsupported_parameter")] if refused else [])


def test_it_waits_for_prefill_alone_and_in_its_turn() -> None:
    b = bench(decode=0)
    b.worker(Phase.DECODE, max_sequences=1)
    b.submit(1)
    prefill, _ = b.legs()
    b.submit(2, context_only=True)
    (leg,) = b.of(actions.StartLeg)  # decode has no slot left, and it needs none
    b.submit(3, context_only=True)
    assert not b.of(actions.StartLeg)
    b.feed(parked(leg))
    b.close(leg)
    assert [each.command.sequence for each in b.of(actions.StartLeg)] == [3]
    b.close(prefill)


def test_what_needs_decode_alone_goes_before_what_needs_both() -> None:
    b = bench(decode=0)
    b.worker(Phase.DECODE, max_sequences=1)
    found = voucher(b)
    b.submit(2)
    prefill, decode = b.legs()
    b.submit(3)
    b.submit(4, voucher=found)
    b.close(prefill)
    b.close(decode)
    assert [each.command.sequence for each in b.of(actions.StartLeg)] == [4]


def test_prefill_s_terminate_ends_it_whatever_is_propagated() -> None:
    b = Bench(0, 0)
    b.worker(Phase.PREFILL, parks=True, has_hook=True, propagate_terminate=False)
    b.worker(Phase.DECODE)
    b.submit(context_only=True)
    (leg,) = b.of(actions.StartLeg)
    b.feed(events.LegVerdict(leg.worker, leg.leg, terminate=True, reason="no", completion_tokens=1))
    (end,) = b.of(actions.EndSequence)
    assert (end.stop_reason, end.completion_tokens) == ("no", 1)
    assert b.cancelled() == [leg.leg]
    b.close(leg)
    assert b.of(actions.GiveVoucher) == []
    assert b.at_rest()


def test_nothing_is_shown_without_the_verdict_of_a_hook() -> None:
    b = Bench(0, 0)
    b.worker(Phase.PREFILL, parks=True, has_hook=True)
    b.worker(Phase.DECODE)
    b.submit(context_only=True)
    (leg,) = b.of(actions.StartLeg)
    b.feed(parked(leg))
    b.close(leg)
    assert b.ends() == [(1, "hook_failed")]
    assert b.of(actions.GiveVoucher) == []


def test_a_worker_that_does_not_say_what_it_parked_fails_it() -> None:
    b = bench()
    b.submit(context_only=True)
    (leg,) = b.of(actions.StartLeg)
    b.close(leg)
    assert b.ends() == [(1, "worker_error")]


def test_what_an_ordinary_leg_says_to_have_parked_is_nothing() -> None:
    b = bench()
    b.submit()
    prefill, decode = b.legs()
    b.feed(parked(prefill))
    b.close(prefill)
    b.close(decode)
    assert b.of(actions.GiveVoucher) == []
    assert b.at_rest()


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (EngineError("x"), "engine_error"),
        (VoucherError("x"), "voucher_refused"),
    ],
)
def test_neither_half_is_tried_on_other_workers(second: bool, error: Any, told: str) -> None:
    b = bench(2, 2)
    fields = {"voucher": voucher(b)} if second else {"context_only": True}
    b.submit(9, **fields)
    (leg,) = b.of(actions.StartLeg)
    b.close(leg, Outcome.FAILED, error=error, retryable=True)
    assert b.ends() == [(9, told)]
    assert b.at_rest()


def refuse_room(b: Bench, leg: actions.StartLeg) -> None:
    b.close(leg, Outcome.FAILED, error=ParkingFullError("x"), retryable=True)


@pytest.mark.promise("S6-190")
def test_where_one_worker_may_park_no_more_another_is_asked() -> None:
    b = bench(3)
    b.submit(context_only=True)
    asked = []
    for _ in range(2):
        (leg,) = b.of(actions.StartLeg)
        asked.append(leg.worker)
        refuse_room(b, leg)
    assert b.ends() == []
    (leg,) = b.of(actions.StartLeg)
    assert sorted([*asked, leg.worker]) == ["prefill-0", "prefill-1", "prefill-2"]
    b.feed(parked(leg))
    b.close(leg)
    (given,) = b.of(actions.GiveVoucher)
    assert given.voucher.kv_peer == f"kv-of-{leg.worker}"
    assert b.at_rest()


@pytest.mark.promise("S6-190")
def test_it_is_told_that_parking_is_full_once_every_worker_has_said_so() -> None:
    b = bench(2)
    b.worker(Phase.PREFILL, 2)  # parks nothing
    b.submit(context_only=True)
    for ends in ([], [(1, "parking_full")]):
        (leg,) = b.of(actions.StartLeg)
        refuse_room(b, leg)
        assert b.ends() == ends
    assert b.at_rest()


def test_a_second_half_is_not_tried_elsewhere_whatever_its_worker_says_of_parking() -> None:
    b = bench(2, 2)
    b.submit(9, voucher=voucher(b))
    (leg,) = b.of(actions.StartLeg)
    refuse_room(b, leg)
    assert b.ends() == [(9, "parking_full")]


@pytest.mark.parametrize("goes", [False, True])
def test_it_waits_for_the_worker_that_was_not_asked_as_long_as_there_is_one(goes: bool) -> None:
    b = bench(1)
    b.submit(context_only=True)
    (leg,) = b.of(actions.StartLeg)
    b.worker(Phase.PREFILL, 1, parks=True, max_sequences=1, other_legs=1)
    refuse_room(b, leg)
    assert (b.of(actions.StartLeg), b.ends()) == ([], [])
    if goes:
        b.feed(events.WorkerDown("prefill-1", "gone"))
        assert b.ends() == [(1, "parking_full")]
    else:
        b.feed(events.WorkerLoad("prefill-1", 0))
        assert [each.worker for each in b.of(actions.StartLeg)] == ["prefill-1"]


def test_what_an_attempt_left_that_a_worker_gave_up_is_not_given() -> None:
    b = bench(2, 2)
    b.submit(context_only=True)
    (leg,) = b.of(actions.StartLeg)
    b.feed(parked(leg))
    b.close(leg, Outcome.FAILED, error=QueueFullError("x"), retryable=True)
    (again,) = b.of(actions.StartLeg)
    b.close(again)
    assert b.ends() == [(1, "worker_error")]


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("error", [QueueFullError("x"), DrainingError("x")])
def test_a_half_that_a_worker_did_not_begin_waits_for_another(second: bool, error: Any) -> None:
    b = bench(2, 2)
    found = voucher(b)
    b.submit(9, **({"voucher": found} if second else {"context_only": True}))
    (leg,) = b.of(actions.StartLeg)
    b.close(leg, Outcome.FAILED, error=error, retryable=True)
    (again,) = b.of(actions.StartLeg)
    assert again.worker != leg.worker
    assert not second or again.command.room == found.room
    assert b.ends() == []


def test_the_second_half_is_not_run_again_by_classifiers() -> None:
    b = bench()
    b.submit(2, voucher=voucher(b))
    (leg,) = b.of(actions.StartLeg)
    b.close(leg, Outcome.REGENERATE, overlay=b"o")
    assert b.ends() == [(2, "worker_error")]
    assert b.at_rest()


def test_a_draining_worker_s_kv_can_still_be_fetched_and_a_lost_one_s_not() -> None:
    b = bench(2)
    found = voucher(b)
    keeper = found.kv_peer.removeprefix("kv-of-")
    b.feed(events.WorkerDraining(keeper, True))
    b.submit(2, voucher=found)
    (leg,) = b.of(actions.StartLeg)
    b.close(leg, Outcome.FAILED, error=VoucherError("used"))
    b.feed(events.WorkerDown(keeper, "gone"))
    b.submit(3, voucher=found)
    assert b.ends() == [(3, VoucherError.code)]


def test_it_ends_at_once_when_what_kept_its_kv_is_lost_while_it_waits() -> None:
    b = bench(2)
    found = voucher(b)
    for first in (2, 3):
        b.submit(first)
    b.submit(4, voucher=found)
    b.feed(events.WorkerDown(found.kv_peer.removeprefix("kv-of-"), "gone"))
    assert (4, VoucherError.code) in b.ends()


def test_a_deadline_a_cancel_and_a_frontend_that_goes_end_either_half() -> None:
    for end in (
        lambda b: b.feed(after=60.0),
        lambda b: b.feed(events.Cancel(1, 9)),
        lambda b: b.feed(events.FrontendDown(1)),
        lambda b: b.feed(events.Abandon()),
    ):
        for second in (False, True):
            b = bench()
            found = voucher(b)
            b.submit(9, **({"voucher": found} if second else {"context_only": True}))
            (leg,) = b.of(actions.StartLeg)
            end(b)
            assert b.cancelled() == [leg.leg]
            b.close(leg, Outcome.CANCELLED)
            assert b.at_rest()
            assert b.of(actions.GiveVoucher) == []


class Chance:
    """Whatever may happen, in an order that a seed draws. The rules of the simulation judge."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.b = bench(2, 2, max_queue=4)
        self.vouchers: list[Voucher] = []
        self.first = 0
        self.given = self.resumed = 0
        self.full: defaultdict[int, set[str]] = defaultdict(set)
        """Workers that refused to park a sequence's KV."""
        self.full_ends = 0

    def step(self) -> None:
        getattr(self, self.dice.choice(self.KINDS))()
        for start in self.b.of(actions.StartLeg):
            command = start.command
            assert start.worker not in self.full[command.sequence] or not command.context_only
        self.full_ends += sum(code == ParkingFullError.code for _, code in self.b.ends())
        for given in self.b.of(actions.GiveVoucher):
            self.vouchers.append(given.voucher)
            self.given += 1
        self.resumed += sum(bool(each.command.task_digest) for each in self.b.of(actions.StartLeg))

    KINDS = (*["submit"] * 6, *["leg"] * 14, "cancel", "worker", "time")

    def submit(self) -> None:
        self.first += 1
        fields: dict[str, Any] = {"timeout_seconds": self.dice.choice([5.0, 50.0])}
        fields["tenant"] = self.dice.choice(["", "a", "b"])
        kind = self.dice.choice(["both", "first", "first", "second"])
        if kind == "first":
            fields["context_only"] = True
        elif kind == "second" and self.vouchers:
            fields["voucher"] = self.dice.choice(self.vouchers)
        self.b.submit(self.first, **fields)

    def leg(self) -> None:
        legs = list(self.b.core.state.legs.values())
        if not legs:
            return
        leg = self.dice.choice(legs)
        where = leg.worker.key, leg.number
        match self.dice.choice(["started", "parked", "verdict", "end", "end", "fail", "full"]):
            case "started":
                self.b.feed(events.LegStarted(*where))
            case "parked":
                self.parked(*where)
            case "verdict":
                self.b.feed(events.LegVerdict(*where, terminate=self.dice.random() < 0.2))
            case "end":
                if self.dice.random() < 0.8:
                    self.b.feed(events.LegVerdict(*where, terminate=False))
                    self.parked(*where)
                self.b.feed(events.LegClosed(*where, Outcome.FINISHED))
            case "fail":
                error = EngineError("x")
                retryable = self.dice.random() < 0.5
                self.b.feed(
                    events.LegClosed(*where, Outcome.FAILED, error=error, retryable=retryable)
                )
            case "full":
                full = self.dice.choice(
                    [QueueFullError("x"), DrainingError("x"), ParkingFullError("x")]
                )
                if isinstance(full, ParkingFullError):
                    if not leg.sequence.request.submit.context_only:
                        return
                    self.full[leg.sequence.number].add(leg.worker.key)
                self.b.feed(events.LegClosed(*where, Outcome.FAILED, error=full, retryable=True))

    def parked(self, worker: str, leg: int) -> None:
        self.b.feed(
            events.LegParked(
                worker=worker, leg=leg, token_ids=(1,), task_digest=DIGEST, lease_seconds=9.0
            )
        )

    def cancel(self) -> None:
        self.b.feed(events.Cancel(1, self.dice.randint(1, max(1, self.first))))

    def worker(self) -> None:
        phase, index = self.dice.choice([*Phase]), self.dice.randint(0, 1)
        key = f"{phase.value}-{index}"
        match self.dice.choice(["down", "up", "up", "drain", "load"]):
            case "down":
                self.b.feed(events.WorkerDown(key, "gone", died=self.dice.random() < 0.3))
            case "up":
                self.b.worker(phase, index, parks=True, has_hook=self.dice.random() < 0.3)
            case "drain":
                self.b.feed(events.WorkerDraining(key, self.dice.random() < 0.5))
            case "load":
                self.b.feed(events.WorkerLoad(key, self.dice.randint(0, 3)))

    def time(self) -> None:
        self.b.feed(events.Tick(), after=self.dice.choice([0.1, 1.0, 6.0]))

    def rest(self) -> None:
        """Everything that is open ends, and nothing is left."""
        self.b.feed(events.Abandon())
        for leg in list(self.b.core.state.legs.values()):
            self.b.feed(events.LegClosed(leg.worker.key, leg.number, Outcome.CANCELLED))
        assert self.b.at_rest()


@pytest.mark.promise("S2-082")
def test_in_every_order_each_half_ends_once_and_nothing_is_left() -> None:
    given = resumed = full = 0
    for seed in SEEDS:
        chance = Chance(seed)
        for _ in range(STEPS):
            chance.step()
        chance.rest()
        given += chance.given
        resumed += chance.resumed
        full += chance.full_ends
    assert given > 2 * len(SEEDS)
    assert resumed > len(SEEDS)
    assert full > len(SEEDS) // 4
