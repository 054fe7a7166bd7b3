"""The rules of the router's core, one by one, with exact events and actions."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from typing import Any, TypeVar

import pytest
from simulated import submits
from simulated.router_invariants import InvariantError, check
from simulated.router_rules import RouterRules

from tandem.byte_budget import DEFAULT_BYTES, ByteBudget
from tandem.endings import Outcome
from tandem.errors import DrainingError, EngineError, HookError, QueueFullError, TandemError
from tandem.message_limits import MAX_OUTPUTS, MAX_TASK_BYTES
from tandem.v1 import common_pb2
from tandem_router import translate
from tandem_router.core import actions, events
from tandem_router.core.actions import Action
from tandem_router.core.machine import Core
from tandem_router.core.sequences import Request, Sequence
from tandem_router.core.values import Bounds, Fingerprint, Phase, Profile
from tandem_router.policies import LeastLoaded, PolicyFactory

FINGERPRINT = Fingerprint("tiny", "1", "sim", "1", "f32", 16, "f32", "nhd", 1, "sha", 1)
A = TypeVar("A")


def least_loaded() -> LeastLoaded:
    """One whose draws are the first two by load."""
    return LeastLoaded(lambda _: 0)


class Bench:
    """A core with its checks, and shorthands for what goes in and comes out."""

    def __init__(
        self,
        prefill: int = 1,
        decode: int = 1,
        *,
        memory: int = DEFAULT_BYTES,
        prefill_policy: PolicyFactory = least_loaded,
        **bounds: Any,
    ) -> None:
        self.now = 0.0
        self.core = Core(
            budget=ByteBudget(memory),
            bounds=Bounds(**bounds),
            prefill_policy=prefill_policy,
            decode_policy=least_loaded,
            new_room=itertools.count(1000).__next__,
        )
        self.rules = RouterRules(self.core.state.bounds, self._fault, memory=memory)
        self.done: list[Action] = []
        self.feed(events.FrontendUp(1))
        for index in range(prefill):
            self.worker(Phase.PREFILL, index)
        for index in range(decode):
            self.worker(Phase.DECODE, index)

    @staticmethod
    def _fault(text: str, _: str) -> None:
        raise InvariantError(text)

    def feed(self, *batch: events.Event, after: float = 0.0) -> list[Action]:
        """Returns only what this called for."""
        self.now += after
        self.done = []
        wakes_at = self.core.wakes_at
        for each in ((), *((event,) for event in batch)):
            done = self.core.handle(self.now, each)
            by_time_alone = not each or isinstance(batch[0], events.Tick)
            assert not (by_time_alone and done and self.now < wakes_at), "it was not foreseen"
            self.rules.observe(self.now, *each or (None,), done)
            check(self.core.state)
            self.rules.compare_loads(self.core.state.fleet.workers)
            self.done += done
        return self.done

    def worker(self, phase: Phase, index: int = 0, *, other_legs: int = 0, **profile: Any) -> str:
        key = f"{phase.value}-{index}"
        fields: dict[str, Any] = {
            "name": key,
            "phase": phase,
            "fingerprint": FINGERPRINT,
            "max_sequences": 2,
            "context_length": 100,
            "kv_endpoint": f"kv-of-{key}",
            **profile,
        }
        up = events.WorkerUp(
            worker=key, listed_as=phase, profile=Profile(**fields), other_legs=other_legs
        )
        self.feed(up)
        return key

    def submit(self, first: int = 1, **fields: Any) -> list[Action]:
        given = {"n": 1, "model": "tiny", "timeout_seconds": 60.0, "task": b"t", **fields}
        return self.feed(submits.submit(first, **given))

    def of(self, kind: type[A]) -> list[A]:
        return [action for action in self.done if isinstance(action, kind)]

    def legs(self) -> tuple[actions.StartLeg, actions.StartLeg]:
        """The two legs that the last event started."""
        prefill, decode = self.of(actions.StartLeg)
        return prefill, decode

    def close(
        self, leg: actions.StartLeg, outcome: Outcome = Outcome.FINISHED, **how: Any
    ) -> list[Action]:
        return self.feed(events.LegClosed(leg.worker, leg.leg, outcome, **how))

    def ends(self) -> list[tuple[int, str]]:
        """What the frontend was told: (sequence, error's code or stop_reason)."""
        return [
            (each.sequence, each.stop_reason if each.error is None else each.error.code)
            for each in self.of(actions.EndSequence)
        ]

    def cancelled(self) -> list[int]:
        return [each.leg for each in self.of(actions.CancelLeg)]

    def at_rest(self) -> bool:
        state = self.core.state
        return self.core.idle and not (state.rooms or len(state.waiting) or list(state.deadlines))


# --- loads ---


def prefills(bench: Bench, *prompts: int, task: bytes = b"t") -> list[str]:
    """Where requests with prompts of so many tokens are started."""
    first = len(bench.core.state.legs) + 1
    found = []
    for number, tokens in enumerate(prompts, start=first):
        bench.submit(number, prompt_tokens=tokens, task=task)
        found.append(bench.legs()[0].worker)
    return found


@pytest.mark.promise("S5-252")
def test_a_long_prompt_keeps_its_worker_from_short_ones() -> None:
    bench = Bench(0, 0)
    for index in range(2):
        bench.worker(Phase.PREFILL, index, max_sequences=8)
    bench.worker(Phase.DECODE, max_sequences=8)
    assert prefills(bench, 60, 10, 10, 10) == ["prefill-0", *["prefill-1"] * 3]


@pytest.mark.promise("S5-252")
def test_a_text_counts_as_many_tokens_as_it_can_have() -> None:
    bench = Bench(0, 0)
    for index in range(2):
        bench.worker(Phase.PREFILL, index, max_sequences=8)
    bench.worker(Phase.DECODE, max_sequences=8)
    assert prefills(bench, 0, 20, 20, task=b"t" * 30) == ["prefill-0", "prefill-1", "prefill-1"]


@pytest.mark.promise("S5-252")
def test_a_report_says_how_much_others_have_given_a_worker() -> None:
    bench = Bench(2, 1)
    bench.feed(events.WorkerLoad("prefill-0", 0, prompt_tokens=50))
    assert prefills(bench, 10) == ["prefill-1"]
    bench.feed(events.WorkerLoad("prefill-0", 0, prompt_tokens=0))
    bench.feed(events.WorkerLoad("decode-0", 1, kv_tokens_used=10, kv_tokens_total=100))
    assert prefills(bench, 10) == ["prefill-0"]


@pytest.mark.promise("S5-252")
def test_a_full_kv_cache_keeps_a_decode_worker_from_what_another_can_take() -> None:
    bench = Bench(1, 2)
    bench.feed(events.WorkerLoad("decode-0", 0, kv_tokens_used=90, kv_tokens_total=100))
    bench.submit(1)
    assert bench.legs()[1].worker == "decode-1"


def test_the_fingerprint_has_every_field_of_the_wire_s() -> None:
    known = list(common_pb2.Fingerprint.DESCRIPTOR.fields_by_name)
    assert list(Fingerprint._fields) == [*known, "unknown_fields"]


# --- admission -------------------------------------------------------------------------------


def test_before_any_worker_was_seen_a_request_is_refused_for_want_of_a_pair() -> None:
    bench = Bench(prefill=0, decode=0)
    bench.submit()
    assert bench.ends() == [(1, "no_pair")]


@pytest.mark.promise("S5-581")
def test_frontends_are_told_of_a_model_that_some_pair_only_simulates() -> None:
    for engines, told in ((["sglang"], False), (["sglang", "sim"], True)):
        b = Bench(0, 0)
        for engine, phase in itertools.product(engines, Phase):
            mine = FINGERPRINT._replace(engine=engine)
            b.worker(phase, engines.index(engine), fingerprint=mine)
        (served,) = b.core.state.fleet.served()
        assert served.simulated is told
        (wire,) = translate.fleet([served], b.core.bounds).models
        assert wire.simulated is told


def test_an_unknown_model_is_refused() -> None:
    bench = Bench()
    bench.submit(model="other")
    assert bench.ends() == [(1, "model_not_found")]


def test_a_known_model_without_a_pair_is_refused_as_unavailable_not_as_unknown() -> None:
    bench = Bench(pair_memory_seconds=0.0)
    bench.feed(events.WorkerDown("decode-0", "gone"))
    bench.submit()
    assert bench.ends() == [(1, "no_pair")]


@pytest.mark.promise("S5-220")
def test_a_request_that_comes_after_the_last_pair_went_waits_for_the_next() -> None:
    bench = Bench(pair_wait_seconds=5.0)
    bench.feed(events.WorkerDown("decode-0", "gone"))
    (served,) = bench.of(actions.FleetChanged)[-1].models
    assert (served.ready_pairs, served.waits) == (0, True)
    assert served.context_length == 100, "what a request may be is as it was"
    bench.submit(1)
    assert bench.done == []
    bench.worker(Phase.DECODE, 1)
    assert [leg.worker for leg in bench.legs()] == ["prefill-0", "decode-1"]
    (served,) = bench.of(actions.FleetChanged)[-1].models
    assert (served.ready_pairs, served.waits) == (1, False)


@pytest.mark.promise("S5-220")
def test_each_request_waits_for_a_pair_as_long_as_any_other() -> None:
    bench = Bench(pair_wait_seconds=5.0)
    bench.feed(events.WorkerDown("decode-0", "gone"))
    bench.feed(events.Tick(), after=4.0)
    bench.submit(1)
    bench.feed(events.Tick(), after=4.0)
    bench.submit(2)
    bench.feed(events.Tick(), after=1.0)
    assert bench.ends() == [(1, "no_pair")]
    bench.feed(events.Tick(), after=4.0)
    assert bench.ends() == [(2, "no_pair")]


def test_what_waits_in_vain_may_go_to_another_router_unless_some_of_it_has_begun() -> None:
    """Its decode workers may be those of other routers now."""
    bench = Bench(pair_wait_seconds=5.0, max_queue=10)
    bench.submit(1, n=3)
    begun = bench.of(actions.StartLeg)
    assert len({each.command.sequence for each in begun}) == 2, "the third waits"
    bench.submit(4, n=2)
    bench.feed(events.WorkerDraining("decode-0", True))
    bench.feed(events.Tick(), after=5.0)
    told = {each.sequence: each.refused for each in bench.of(actions.EndSequence)}
    assert told == {3: False, 4: True, 5: True}


@pytest.mark.promise("S5-220")
def test_requests_wait_no_more_for_a_model_that_had_its_last_pair_long_ago() -> None:
    bench = Bench(pair_wait_seconds=5.0, pair_memory_seconds=60.0)
    bench.feed(events.WorkerDown("decode-0", "gone"))
    bench.feed(events.Tick(), after=59.0)
    bench.submit(1)
    assert bench.ends() == []
    bench.feed(events.Tick(), after=1.0)
    assert not bench.of(actions.FleetChanged)[-1].models[0].waits
    assert bench.ends() == [], "what waits already still may"
    bench.submit(2)
    assert bench.ends() == [(2, "no_pair")]


@pytest.mark.promise("S5-223")
def test_requests_wait_at_any_time_for_a_model_that_is_expected() -> None:
    bench = Bench(pair_memory_seconds=60.0, expected_models=frozenset({"tiny"}))
    bench.feed(events.WorkerDown("decode-0", "gone"))
    bench.feed(events.Tick(), after=100_000.0)
    assert bench.core.state.fleet.served()[0].waits
    bench.submit()
    assert bench.ends() == []
    bench.worker(Phase.DECODE)
    assert len(bench.of(actions.StartLeg)) == 2


@pytest.mark.promise("S5-220")
def test_requests_do_not_wait_for_a_model_that_never_had_a_pair() -> None:
    bench = Bench(decode=0)
    bench.submit()
    assert bench.ends() == [(1, "no_pair")]


@pytest.mark.promise("S5-220")
def test_what_waits_for_a_pair_is_bounded_as_any_queue() -> None:
    bench = Bench(max_queue=2)
    bench.feed(events.WorkerDown("decode-0", "gone"))
    bench.submit(1, n=2)
    bench.submit(3)
    assert bench.ends() == [(3, "queue_full")]


@pytest.mark.promise("S5-220")
def test_a_request_too_long_for_the_last_pair_is_not_queued_for_the_next() -> None:
    bench = Bench()
    bench.feed(events.WorkerDown("decode-0", "gone"))
    bench.submit(prompt_tokens=1_000_000)
    assert bench.ends() == [(1, "context_length_exceeded")]


def test_a_prompt_beyond_the_context_is_refused_where_its_length_is_known() -> None:
    bench = Bench()
    bench.submit(1, prompt_tokens=90, max_tokens=11)
    assert bench.ends() == [(1, "context_length_exceeded")]
    bench.submit(2, prompt_tokens=90, max_tokens=10)
    assert len(bench.of(actions.StartLeg)) == 2


def test_a_request_is_admitted_or_refused_as_a_whole() -> None:
    bench = Bench(max_queue=1)
    bench.submit(1, n=4)
    assert bench.ends() == [(number, "queue_full") for number in (1, 2, 3, 4)]
    bench.submit(5, n=3)
    assert len(bench.of(actions.StartLeg)) == 4, "two run, one waits"
    bench.submit(8)
    assert bench.ends() == [(8, "queue_full")]


def test_each_sequence_of_a_request_has_its_own_legs_and_room() -> None:
    bench = Bench(prefill=2, decode=2)
    starts = [each for each in bench.submit(n=3) if isinstance(each, actions.StartLeg)]
    assert [each.command.output_index for each in starts] == [0, 0, 1, 1, 2, 2]
    assert len({each.leg for each in starts}) == 6
    assert len({each.command.room for each in starts}) == 3
    assert {each.worker for each in starts} == {"prefill-0", "prefill-1", "decode-0", "decode-1"}


def test_the_higher_priority_starts_first_and_equals_in_their_order() -> None:
    bench = Bench(max_queue=9)
    bench.submit(1, n=2)
    first = bench.of(actions.StartLeg)
    for number, priority in ((3, 0), (4, 5), (5, 0), (6, 5)):
        bench.submit(number, priority=priority)
    order = []
    running = [first[:2], first[2:]]
    for _ in range(4):
        prefill, decode = running.pop(0)
        bench.close(prefill)
        bench.close(decode)
        running.append(bench.of(actions.StartLeg))
        order.append(running[-1][0].command.sequence)
    assert order == [4, 6, 3, 5]


@pytest.mark.parametrize(
    ("first", "n"),
    [(2, 1), (3, 1), (1, 2), (0, 9), (7, 0), (7, MAX_OUTPUTS + 1), (2**64 - 1, 2)],
    ids=lambda number: str(number),
)
def test_a_frontend_that_numbers_wrongly_is_dropped_with_all_it_asked_for(
    first: int, n: int
) -> None:
    bench = Bench(max_queue=MAX_OUTPUTS * 2)
    bench.submit(2, n=2)
    # Not through the ledger: its books cannot hold two sequences of one number.
    done = bench.core.handle(
        bench.now,
        [submits.submit(first, n=n, model="tiny", timeout_seconds=1, task=b"")],
    )
    assert [type(each) for each in done if not isinstance(each, actions.RequestEnded)] == [
        *[actions.CancelLeg] * 4,
        actions.RefuseFrontend,
    ]
    assert bench.core.state.frontends == {}


def test_numbers_up_to_the_last_one_and_those_of_an_ended_request_may_be_used() -> None:
    bench = Bench()
    bench.submit(2**64 - 2, n=2)
    for leg in bench.of(actions.StartLeg):
        bench.close(leg)
    bench.submit(2**64 - 1)
    assert bench.legs()[0].command.sequence == 2**64 - 1


def test_a_request_is_cancelled_by_its_first_number_alone() -> None:
    bench = Bench()
    bench.submit(1, n=2)
    bench.feed(events.Cancel(1, 2), events.Cancel(2, 1))
    assert bench.done == []


# --- slots and pairs -------------------------------------------------------------------------


def test_a_decode_leg_is_told_the_endpoint_and_the_room_of_its_prefill_leg() -> None:
    bench = Bench(prefill=2, decode=2)
    bench.submit()
    prefill, decode = bench.legs()
    assert (prefill.worker, prefill.command.kv_peer) == ("prefill-0", "")
    assert (decode.worker, decode.command.kv_peer) == ("decode-0", "kv-of-prefill-0")
    assert prefill.command.room == decode.command.room != 0
    bench.submit(2)
    prefill, decode = bench.legs()
    assert (prefill.worker, decode.worker) == ("prefill-1", "decode-1")
    assert decode.command.kv_peer == "kv-of-prefill-1"


def test_a_slot_is_free_only_when_its_leg_has_closed() -> None:
    bench = Bench()
    bench.submit(1, n=2)
    starts = bench.of(actions.StartLeg)
    bench.submit(3)
    bench.feed(events.Cancel(1, 1))
    assert bench.ends() == [(1, "cancelled"), (2, "cancelled")]
    assert not bench.of(actions.StartLeg)
    bench.close(starts[0], Outcome.CANCELLED)
    assert not bench.of(actions.StartLeg), "decode has no free slot yet"
    bench.close(starts[1], Outcome.CANCELLED)
    assert bench.legs()[0].command.sequence == 3


_MORE: dict[type, Any] = {str: "x", int: 1, bytes: b"x"}


def test_workers_that_differ_in_any_field_are_never_paired() -> None:
    for name in Fingerprint._fields[1:]:
        if name == "aggregated":
            continue  # tests/unit/test_router_ways.py
        bench = Bench(decode=0)
        value = FINGERPRINT._asdict()[name]
        other = FINGERPRINT._replace(**{name: value + _MORE[type(value)]})
        bench.worker(Phase.DECODE, fingerprint=other)
        bench.submit()
        assert bench.ends() == [(1, "no_pair")]
        assert bench.core.state.counts.pairs_rejected == {name: 1}
        worker = bench.core.state.fleet.workers["decode-0"]
        assert bench.core.state.fleet.refusal(worker).startswith(f"{name} is ")


def test_a_worker_listed_under_the_wrong_phase_is_not_used() -> None:
    bench = Bench(decode=0)
    profile = bench.core.state.fleet.workers["prefill-0"].profile
    bench.feed(events.WorkerUp(worker="decode-0", listed_as=Phase.DECODE, profile=profile))
    assert [each.reason for each in bench.of(actions.PairRejected)] == [
        "it is a prefill worker, listed as decode"
    ]
    bench.submit()
    assert bench.ends() == [(1, "no_pair")]


def test_a_worker_that_comes_up_refuses_its_pairs_in_one_line_with_a_reason() -> None:
    bench = Bench(prefill=2)
    for index in range(1, 4):
        bench.worker(Phase.DECODE, index, fingerprint=FINGERPRINT._replace(page_size=32))
    (line,) = bench.of(actions.PairRejected)
    assert line.worker == "decode-3"
    assert line.reason == "page_size is 32, but 16 on prefill worker prefill-0"
    assert line.pairs == 2
    bench.worker(Phase.PREFILL, 2)
    (line,) = bench.of(actions.PairRejected)
    assert line.reason == "page_size is 16, but 32 on decode worker decode-1", "though paired"
    assert line.pairs == 3
    assert bench.core.refusal("prefill-2") == ""
    assert bench.core.snapshot().counts.pairs_rejected == {"page_size": 9}


def test_a_worker_that_takes_no_sequences_is_in_no_pair() -> None:
    bench = Bench(decode=0)
    bench.worker(Phase.DECODE, max_sequences=0)
    assert [each.reason for each in bench.of(actions.PairRejected)] == [
        "it takes no sequences: max_sequences is 0"
    ]
    bench.submit()
    assert bench.ends() == [(1, "no_pair")]


def test_two_models_have_queues_and_pairs_of_their_own() -> None:
    bench = Bench()
    other = FINGERPRINT._replace(model="other")
    bench.worker(Phase.PREFILL, 8, fingerprint=other)
    bench.worker(Phase.DECODE, 8, fingerprint=other)
    bench.submit(1, n=3)
    bench.submit(4, model="other")
    assert [each.worker for each in bench.legs()] == ["prefill-8", "decode-8"]
    assert len(bench.core.state.waiting) == 1


def two_tokenizers(old: int = 1, new: int = 1) -> Bench:
    """A fleet in the midst of a rollout: so many pairs of the tokenizer "sha", and of "new"."""
    bench = Bench(old, old)
    for index in range(5, 5 + new):
        for phase in Phase:
            bench.worker(phase, index, fingerprint=FINGERPRINT._replace(tokenizer_sha256="new"))
    return bench


@pytest.mark.promise("S5-206")
@pytest.mark.parametrize(("tokenizer", "index"), [("sha", 0), ("new", 5)])
def test_token_ids_run_on_workers_of_their_tokenizer_alone(tokenizer: str, index: int) -> None:
    bench = two_tokenizers()
    bench.submit(1, n=2, tokenizer_sha256=tokenizer)
    assert {each.worker for each in bench.of(actions.StartLeg)} == {
        f"prefill-{index}",
        f"decode-{index}",
    }
    bench.submit(3, tokenizer_sha256=tokenizer)
    assert bench.done == [], "its pair is full, and the other is none"
    bench.submit(4, tokenizer_sha256="sha" if tokenizer == "new" else "new")
    assert len(bench.legs()) == 2, "what waits for one does not block the other"


@pytest.mark.promise("S5-206")
def test_what_loses_its_last_pair_ends_typed_though_others_have_one() -> None:
    bench = two_tokenizers()
    bench.submit(1, n=2, tokenizer_sha256="sha")
    bench.submit(3, tokenizer_sha256="sha")
    bench.feed(events.WorkerDown("prefill-0", "gone"), events.WorkerDown("decode-0", "gone"))
    assert not bench.of(actions.StartLeg)
    bench.feed(events.Tick(), after=bench.core.state.bounds.pair_wait_seconds)
    assert bench.ends() == [(3, "no_pair")]
    bench.submit(9, tokenizer_sha256="sha")
    assert bench.ends() == [(9, "no_pair")]


@pytest.mark.promise("S5-206")
@pytest.mark.parametrize(("old", "new", "index"), [(2, 1, 0), (1, 2, 5)])
def test_a_prompt_of_any_tokenizer_goes_where_most_pairs_are(
    old: int, new: int, index: int
) -> None:
    bench = two_tokenizers(old, new)
    bench.submit()
    assert bench.legs()[0].worker == f"prefill-{index}"


@pytest.mark.promise("S5-206")
def test_frontends_are_told_of_each_tokenizer_s_pairs() -> None:
    bench = two_tokenizers(1, 2)
    served = bench.core.state.fleet.served()
    told = {each.tokenizer_sha256: (each.name, each.ready_pairs) for each in served}
    assert told == {"sha": ("tiny", 1), "new": ("tiny", 4)}
    bench.submit(tokenizer_sha256="none's")
    assert bench.ends() == [(1, "no_pair")]


def test_a_draining_worker_gets_nothing_new_and_keeps_what_it_has() -> None:
    bench = Bench(prefill=2)
    bench.feed(events.WorkerDraining("prefill-0", True))
    bench.submit()
    prefill, decode = bench.legs()
    assert prefill.worker == "prefill-1"
    bench.feed(events.WorkerDraining("prefill-1", True))
    bench.close(prefill)
    bench.close(decode)
    assert bench.ends() == []
    bench.submit(2)
    assert not bench.of(actions.StartLeg)
    assert bench.ends() == []


def test_output_that_comes_while_an_attempt_is_given_up_ends_the_request() -> None:
    """It may have been shown: another attempt would show it twice."""
    bench = Bench(prefill=2)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.WorkerDown(prefill.worker, "it gave us up", died=False))
    assert bench.cancelled() == [decode.leg]
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    assert bench.ends() == [(1, "worker_lost")]
    bench.close(decode, Outcome.CANCELLED)
    assert not bench.of(actions.StartLeg)


def test_output_that_is_held_while_an_attempt_is_given_up_is_made_again() -> None:
    bench = Bench(prefill=0)
    for index in range(2):
        bench.worker(Phase.PREFILL, index, has_hook=True)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.WorkerDown(prefill.worker, "it gave us up", died=False))
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.close(decode, Outcome.CANCELLED)
    assert [each.worker for each in bench.legs()] == ["prefill-1", "decode-0"]


def test_a_leg_on_its_way_to_a_worker_that_has_drained_loses_no_attempt() -> None:
    bench = Bench(prefill=2, max_retries=0)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.WorkerDraining("prefill-0", True))
    bench.feed(events.WorkerDown("prefill-0", "it ended its stream", died=False))
    assert bench.cancelled() == [decode.leg]
    bench.close(decode, Outcome.CANCELLED)
    assert prefill.worker == "prefill-0"
    assert [each.worker for each in bench.legs()] == ["prefill-1", "decode-0"]


def test_frontends_never_hear_of_a_draining_worker_as_if_the_router_drained() -> None:
    """They would submit a request again that has begun here."""
    bench = Bench(max_queue=1)
    bench.submit(1)
    prefill, decode = bench.legs()
    bench.feed(events.WorkerDraining("prefill-0", True))
    bench.worker(Phase.PREFILL, 1, max_sequences=1, other_legs=1)
    bench.submit(2)
    _refuse(bench, prefill, DrainingError("this worker is shutting down"))
    bench.close(decode, Outcome.CANCELLED)
    assert bench.ends() == [(1, "no_pair")]


def test_what_a_draining_worker_had_shown_is_lost_with_it() -> None:
    bench = Bench(decode=2)
    bench.submit()
    _, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.feed(events.WorkerDraining(decode.worker, True))
    bench.feed(events.WorkerDown(decode.worker, "it ended its stream"))
    assert bench.ends() == [(1, "worker_lost")]


def test_the_fleet_tells_the_smallest_limits_and_what_both_phases_know() -> None:
    bench = Bench(decode=0)
    bench.worker(Phase.PREFILL, 1, context_length=80, logits_processors=frozenset({"a", "b"}))
    bench.worker(Phase.PREFILL, 0, logits_processors=frozenset({"a", "c"}), vocabulary=9)
    bench.worker(Phase.DECODE, 0, max_sequences=1, logits_processors=frozenset({"a", "b", "c"}))
    (changed,) = bench.of(actions.FleetChanged)
    (model,) = changed.models
    assert (model.ready_pairs, model.context_length, model.max_sequences) == (2, 80, 1)
    assert model.logits_processors == ("a",)


def test_a_change_that_frontends_cannot_see_is_not_announced() -> None:
    bench = Bench()
    profile = bench.core.state.fleet.workers["decode-0"].profile
    changed = dataclasses.replace(profile, name="other")
    bench.feed(events.WorkerUp(worker="decode-0", listed_as=Phase.DECODE, profile=changed))
    announced = [each.models[0].ready_pairs for each in bench.of(actions.FleetChanged)]
    assert announced == [0, 1], "the old connection is gone before the new one is there"
    bench.feed(events.WorkerDraining("decode-0", False))
    assert bench.done == []


@pytest.mark.parametrize("phase", list(Phase))
def test_a_worker_that_drains_from_the_start_is_in_no_pair(phase: Phase) -> None:
    bench = Bench(prefill=phase is Phase.DECODE, decode=phase is Phase.PREFILL)
    bench.worker(phase, draining=True)
    bench.submit()
    assert bench.ends() == [(1, "no_pair")]
    bench.feed(events.WorkerDraining(f"{phase.value}-0", False))
    bench.submit(2)
    assert len(bench.of(actions.StartLeg)) == 2


# --- the ends of a sequence ------------------------------------------------------------------


def test_a_finished_decode_ends_the_sequence_and_cancels_a_prefill_that_is_still_open() -> None:
    bench = Bench()
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.close(decode)
    assert bench.ends() == [], "its Finish was in the payload"
    assert bench.cancelled() == [prefill.leg]
    bench.close(prefill)
    assert bench.at_rest()


@pytest.mark.promise("S0-029")
def test_a_terminated_decode_ends_its_siblings_with_the_reason_of_the_hook() -> None:
    bench = Bench()
    bench.submit(n=2)
    starts = bench.of(actions.StartLeg)
    bench.close(starts[1], Outcome.TERMINATED, reason="guard")
    assert bench.ends() == [(2, "guard")]
    assert bench.cancelled() == [starts[2].leg, starts[3].leg, starts[0].leg]
    assert bench.core.state.counts.requests == {"terminated": 1}


@pytest.mark.promise("S0-029")
def test_siblings_end_with_the_verdict_of_decode_and_the_sequence_with_its_leg() -> None:
    """Whatever that end is: a classifier may fail on what the hook let through."""
    bench = Bench()
    bench.submit(n=2)
    starts = bench.of(actions.StartLeg)
    bench.feed(events.LegVerdict("decode-0", starts[1].leg, True, "guard", prompt_tokens=7))
    assert bench.ends() == [(2, "guard")]
    assert [each.prompt_tokens for each in bench.of(actions.EndSequence)] == [7]
    assert bench.cancelled() == [starts[2].leg, starts[3].leg]
    bench.close(starts[1], Outcome.FAILED, error=HookError("a classifier failed"))
    assert bench.ends() == [(1, "hook_failed")]


@pytest.mark.promise("S0-029")
@pytest.mark.parametrize("told_by", ["verdict", "close"])
def test_a_terminate_of_an_attempt_that_was_given_up_ends_all_of_its_request(told_by: str) -> None:
    """The worker shows nothing more of the siblings, so nobody may wait for them."""
    bench = Bench(prefill=2, decode=2)
    bench.submit(n=2)
    starts = bench.of(actions.StartLeg)
    bench.close(starts[0], Outcome.FAILED, error=EngineError("gone"), retryable=True)
    assert bench.cancelled() == [starts[1].leg]
    worker = starts[1].worker
    if told_by == "verdict":
        bench.feed(events.LegVerdict(worker, starts[1].leg, True, "guard"))
    else:
        bench.feed(events.LegClosed(worker, starts[1].leg, Outcome.TERMINATED, "guard"))
    assert sorted(bench.ends()) == [(1, "guard"), (2, "guard")]
    for start in starts[1:]:
        bench.feed(events.LegClosed(start.worker, start.leg, Outcome.CANCELLED))
        assert bench.of(actions.StartLeg) == []
    assert bench.at_rest()


@pytest.mark.promise("S0-029")
def test_a_terminate_of_a_sequence_that_has_ended_ends_its_siblings() -> None:
    bench = Bench()
    bench.submit(n=2)
    starts = bench.of(actions.StartLeg)
    bench.close(starts[0], Outcome.FAILED, error=HookError("prefill's hook raised"))
    assert bench.ends() == [(1, "hook_failed")]
    bench.close(starts[1], Outcome.TERMINATED, reason="guard")
    assert bench.ends() == [(2, "guard")]


@pytest.mark.promise("S0-036")
def test_a_terminate_in_decode_cancels_the_prefill_leg_at_once() -> None:
    bench = Bench()
    bench.submit()
    prefill, decode = bench.legs()
    bench.close(decode, Outcome.TERMINATED, reason="guard")
    assert bench.cancelled() == [prefill.leg]


@pytest.mark.promise("S0-035", "S0-038")
def test_a_terminate_in_prefill_ends_the_request_only_where_that_worker_propagates_it() -> None:
    for propagate in (True, False):
        bench = Bench(prefill=0)
        bench.worker(Phase.PREFILL, has_hook=True, propagate_terminate=propagate)
        bench.submit(n=2)
        starts = bench.of(actions.StartLeg)
        bench.feed(events.LegVerdict("prefill-0", starts[0].leg, True, "guard", 1))
        released = [each.leg for each in bench.of(actions.ReleaseLeg)]
        if propagate:
            ended = bench.of(actions.EndSequence)
            assert bench.ends() == [(1, "guard"), (2, "guard")]
            assert [each.completion_tokens for each in ended] == [1, 0], "a sibling's are chance"
            assert len(bench.cancelled()) == 4
            assert released == []
        else:
            assert bench.ends() == []
            assert released == [starts[1].leg]


def test_the_siblings_of_a_refused_prompt_end_with_it_whatever_they_do() -> None:
    bench = Bench(prefill=0)
    bench.worker(Phase.PREFILL, has_hook=True, propagate_terminate=True)
    bench.submit(n=3)
    starts = bench.of(actions.StartLeg)
    bench.close(starts[2], Outcome.TERMINATED, reason="guard")
    assert bench.ends() == [(2, "guard"), (1, "guard"), (3, "guard")]
    assert bench.cancelled() == [starts[3].leg, starts[0].leg, starts[1].leg]
    assert len(bench.core.state.waiting) == 0


def test_a_failure_of_one_sequence_does_not_touch_its_siblings() -> None:
    bench = Bench()
    bench.submit(n=2)
    starts = bench.of(actions.StartLeg)
    bench.close(starts[1], Outcome.FAILED, error=HookError("no"))
    assert bench.ends() == [(1, "hook_failed")]
    assert bench.cancelled() == [starts[0].leg]


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    ("outcome", "error", "code"),
    [
        (Outcome.FAILED, HookError("no"), "hook_failed"),
        (Outcome.FAILED, None, "worker_error"),
        (Outcome.CANCELLED, None, "worker_error"),
    ],
)
def test_a_prefill_that_fails_ends_its_sequence(
    started: bool, outcome: Outcome, error: TandemError | None, code: str
) -> None:
    bench = Bench(prefill=2)
    bench.submit()
    prefill, decode = bench.legs()
    if started:
        bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.close(prefill, outcome, error=error)
    assert bench.ends() == [(1, code)]
    assert bench.cancelled() == [decode.leg]


def test_decode_is_held_for_what_prefill_has_to_say_and_released_once() -> None:
    for has_hook, wanted, held in (
        (False, {}, False),
        (True, {}, True),
        (False, {"want_report": True}, True),
        (False, {"prompt_logprobs": True}, True),
    ):
        bench = Bench(prefill=0)
        bench.worker(Phase.PREFILL, has_hook=has_hook)
        bench.submit(**wanted)
        prefill, decode = bench.legs()
        assert (prefill.command.hold_output, decode.command.hold_output) == (False, held)
        verdict = events.LegVerdict(prefill.worker, prefill.leg, False)
        bench.feed(verdict)
        assert len(bench.of(actions.ReleaseLeg)) == held
        bench.feed(verdict)
        bench.close(prefill)
        assert not bench.of(actions.ReleaseLeg)


def test_a_prefill_that_ends_without_the_verdict_of_its_hook_fails_closed() -> None:
    bench = Bench(prefill=0)
    bench.worker(Phase.PREFILL, has_hook=True)
    bench.submit()
    prefill, decode = bench.legs()
    bench.close(prefill)
    assert bench.ends() == [(1, "hook_failed")]
    assert bench.cancelled() == [decode.leg]
    assert not bench.of(actions.ReleaseLeg)


def test_a_report_without_a_hook_releases_decode_when_prefill_closes() -> None:
    bench = Bench()
    bench.submit(want_report=True)
    prefill, decode = bench.legs()
    bench.close(prefill)
    assert bench.of(actions.ReleaseLeg) == [actions.ReleaseLeg(decode.worker, decode.leg)]


@pytest.mark.promise("S4-127")
@pytest.mark.parametrize("judges", [False, True])
def test_both_legs_engines_say_log_probabilities_where_decodes_classifiers_are_given_them(
    judges: bool,
) -> None:
    bench = Bench(decode=0)
    bench.worker(Phase.DECODE, has_hook=True, has_classifiers=True, judges_logprobs=judges)
    bench.submit()
    assert [leg.command.say_logprobs for leg in bench.legs()] == [judges, judges]


def test_each_attempt_is_judged_anew() -> None:
    bench = Bench(prefill=0, decode=2)
    bench.worker(Phase.PREFILL, has_hook=True)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.LegVerdict(prefill.worker, prefill.leg, False))
    assert [each.leg for each in bench.of(actions.ReleaseLeg)] == [decode.leg]
    bench.close(decode, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.close(prefill, Outcome.CANCELLED)
    prefill, decode = bench.legs()
    assert decode.command.hold_output, "the verdict was on another run"
    bench.feed(events.LegVerdict(prefill.worker, prefill.leg, False))
    assert [each.leg for each in bench.of(actions.ReleaseLeg)] == [decode.leg]


def test_a_prefill_lost_before_its_verdict_ends_what_decode_holds() -> None:
    bench = Bench(prefill=0)
    bench.worker(Phase.PREFILL, has_hook=True)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.feed(events.WorkerDown(prefill.worker, "killed"))
    assert bench.ends() == [(1, "worker_lost")]
    assert bench.cancelled() == [decode.leg]
    assert not bench.of(actions.ReleaseLeg)


def test_a_decode_that_ends_what_it_was_to_hold_fails_closed() -> None:
    bench = Bench()
    bench.submit(want_report=True)
    bench.close(bench.legs()[1])
    assert bench.ends() == [(1, "internal_error")]


@pytest.mark.parametrize("stage", ["queued", "prefilling", "decoding"])
def test_a_client_can_cancel_at_every_stage(stage: str) -> None:
    bench = Bench()
    bench.submit(1, n=2)
    starts = bench.of(actions.StartLeg)
    if stage == "queued":
        bench.submit(3)
        bench.feed(events.Cancel(1, 3))
        assert bench.ends() == [(3, "cancelled")]
        assert bench.cancelled() == []
        return
    if stage == "decoding":
        bench.feed(events.LegStarted("decode-0", starts[1].leg))
    bench.feed(events.Cancel(1, 1), events.Cancel(1, 1), events.Cancel(1, 99))
    assert bench.ends() == [(1, "cancelled"), (2, "cancelled")]
    assert bench.cancelled() == [each.leg for each in starts]


def test_a_frontend_that_goes_away_is_told_nothing_and_all_its_legs_are_cancelled() -> None:
    bench = Bench()
    bench.submit(1, n=3)
    starts = bench.of(actions.StartLeg)
    bench.feed(events.FrontendDown(1))
    assert bench.ends() == []
    assert bench.cancelled() == [each.leg for each in starts]
    for leg in starts:
        bench.close(leg, Outcome.CANCELLED)
    assert bench.at_rest()


def test_a_deadline_ends_what_is_queued_and_what_runs() -> None:
    bench = Bench()
    bench.submit(1, n=2, timeout_seconds=5.0)
    legs = [each.leg for each in bench.of(actions.StartLeg)]
    bench.submit(3, timeout_seconds=2.0)
    bench.feed(events.Tick(), after=1.99)
    assert bench.ends() == []
    bench.feed(events.Tick(), after=0.01)
    assert bench.ends() == [(3, "deadline_exceeded")]
    bench.feed(events.Tick(), after=3.0)
    assert bench.ends() == [(1, "deadline_exceeded"), (2, "deadline_exceeded")]
    assert bench.cancelled() == legs


def test_each_attempt_is_told_what_is_left_of_the_deadline() -> None:
    bench = Bench()
    bench.submit(1, n=2)
    starts = bench.of(actions.StartLeg)
    bench.submit(3, timeout_seconds=10.0)
    bench.now += 4.0
    bench.close(starts[0])
    bench.close(starts[1])
    assert [each.command.timeout_ms for each in bench.legs()] == [6_000, 6_000]


def test_a_retry_is_told_what_is_left_of_the_deadline() -> None:
    bench = Bench(prefill=2)
    bench.submit(timeout_seconds=10.0)
    prefill, decode = bench.legs()
    bench.now += 3.0
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.close(decode, Outcome.CANCELLED)
    assert [each.command.timeout_ms for each in bench.legs()] == [7_000, 7_000]


# --- a request that its worker may have died of ---


def _crash(bench: Bench, worker: str, **down: Any) -> None:
    """A worker is lost; what is cancelled for that is closed."""
    bench.feed(events.WorkerDown(worker, "it crashed", **down))
    told = list(bench.done)
    for cancel in bench.of(actions.CancelLeg):
        if cancel.worker != worker:
            closed = events.LegClosed(cancel.worker, cancel.leg, Outcome.CANCELLED)
            told += bench.feed(closed)
    bench.done = told


@pytest.mark.promise("S6-142")
def test_a_request_that_was_alone_on_a_worker_that_died_is_not_tried_again() -> None:
    bench = Bench(prefill=2, decode=2)
    bench.submit()
    _crash(bench, "decode-0")
    assert bench.ends() == [(1, "worker_lost")]
    assert not bench.of(actions.StartLeg)


def test_those_that_were_together_on_a_worker_that_died_may_risk_one_more() -> None:
    bench = Bench(prefill=1, decode=1, max_retries=9)
    for first in (1, 2):
        bench.submit(first, trace_id=f"{first}")
    for index in (1, 2):
        bench.worker(Phase.DECODE, index)
    _crash(bench, "decode-0")
    assert bench.ends() == []
    again = [each.worker for each in bench.of(actions.StartLeg) if each.command.kv_peer]
    assert sorted(again) == ["decode-1", "decode-2"]
    _crash(bench, "decode-1")
    assert [code for _, code in bench.ends()] == ["worker_lost"]
    assert not bench.of(actions.StartLeg)
    _crash(bench, "decode-2")
    assert [code for _, code in bench.ends()] == ["worker_lost"]


@pytest.mark.promise("S6-142")
def test_a_second_death_ends_it_also_where_it_was_not_alone() -> None:
    bench = Bench(prefill=1, decode=1, max_retries=9)
    for first in (1, 2):
        bench.submit(first, trace_id=f"{first}")
    bench.worker(Phase.DECODE, 1)
    bench.worker(Phase.DECODE, 2, other_legs=2)
    _crash(bench, "decode-0")
    assert {each.worker for each in bench.of(actions.StartLeg) if each.command.kv_peer} == {
        "decode-1"
    }
    _crash(bench, "decode-1")
    assert [code for _, code in bench.ends()] == ["worker_lost"] * 2
    assert not bench.of(actions.StartLeg)


def test_what_had_not_reached_the_worker_is_tried_again_freely() -> None:
    bench = Bench(prefill=1, decode=1, max_retries=0)
    bench.submit(1, trace_id="1")
    bench.submit(2, trace_id="2")
    unsent = next(each.leg for each in bench.of(actions.StartLeg) if each.worker == "decode-0")
    bench.worker(Phase.DECODE, 1)
    _crash(bench, "decode-0", unsent=frozenset({unsent}))
    assert bench.ends() == [(1, "worker_lost")], "it was alone there"
    assert {each.command.sequence for each in bench.of(actions.StartLeg)} == {2}


@pytest.mark.promise("S6-142")
@pytest.mark.parametrize("legs", ["n", "prompts"])
def test_all_of_one_client_s_request_is_one_suspect(legs: str) -> None:
    bench = Bench(prefill=1, decode=1)
    if legs == "n":
        bench.submit(n=2, trace_id="t")
    else:
        bench.submit(1, trace_id="t")
        bench.submit(2, trace_id="t")
    bench.worker(Phase.DECODE, 1)
    _crash(bench, "decode-0")
    assert sorted(bench.ends()) == [(1, "worker_lost"), (2, "worker_lost")]
    assert len(bench.of(actions.WorkerDied)) == 1


def test_what_waits_of_a_request_that_may_kill_is_not_begun() -> None:
    bench = Bench(prefill=1, decode=1)
    bench.submit(n=4)
    bench.worker(Phase.DECODE, 1, other_legs=2)
    _crash(bench, "decode-0")
    assert [code for _, code in bench.ends()] == ["worker_lost"] * 4


def test_legs_of_other_routers_mean_that_nobody_was_alone() -> None:
    bench = Bench(prefill=1, decode=2)
    bench.submit()
    bench.feed(events.WorkerLoad("decode-0", 2))
    _crash(bench, "decode-0")
    assert [each.worker for each in bench.legs()][1] == "decode-1"


def test_an_engine_that_dies_is_a_worker_that_dies_and_counts_once() -> None:
    bench = Bench(prefill=1, decode=1)
    for first in (1, 2):
        bench.submit(first, trace_id=f"{first}")
    bench.worker(Phase.DECODE, 1)
    error = EngineError("the engine died")
    decodes = [leg for leg in bench.core.state.legs.values() if leg.phase is Phase.DECODE]
    for leg in decodes:
        fields = {"error": error, "retryable": True, "worker_died": True}
        bench.feed(events.LegClosed("decode-0", leg.number, Outcome.FAILED, **fields))
    bench.feed(events.WorkerDown("decode-0", "its stream broke"))
    requests = {each.sequence.request for each in bench.core.state.legs.values()}
    assert [each.deaths for each in requests] == [1, 1]


def test_an_end_in_good_order_is_no_death() -> None:
    bench = Bench(prefill=1, decode=2)
    bench.submit()
    _crash(bench, "decode-0", died=False)
    assert not bench.of(actions.WorkerDied)
    assert bench.legs()[1].worker == "decode-1"


def test_a_request_that_decodes_elsewhere_outlives_its_prefill_worker() -> None:
    bench = Bench(prefill=2)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    _crash(bench, prefill.worker)
    assert bench.ends() == []
    bench.close(decode)
    assert bench.at_rest()


def test_a_classifier_s_block_gives_a_suspect_no_further_run() -> None:
    bench = Bench(decode=0)
    bench.worker(Phase.DECODE, 0, has_hook=True, has_classifiers=True)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    _crash(bench, prefill.worker)
    bench.worker(Phase.PREFILL, 1)
    bench.close(decode, Outcome.REGENERATE, overlay=b"+")
    assert bench.ends() == [(1, "worker_lost")]


# --- tasks ---


@pytest.mark.parametrize(
    ("n", "size", "fits"),
    [(4, 100, True), (4, 101, False), (1, 400, True), (1, 401, False), (8, 51, False)],
)
def test_n_times_a_task_is_bounded(n: int, size: int, fits: bool) -> None:
    bench = Bench(max_fanout_bytes=400)
    bench.submit(n=n, task=b"x" * size)
    codes = bench.core.state.counts.requests
    assert codes == ({} if fits else {"request_too_large": 1})
    assert bench.core.idle is not fits


def test_a_task_that_might_fill_a_message_is_refused() -> None:
    bench = Bench()
    bench.submit(task=b"x" * (MAX_TASK_BYTES + 1))
    assert bench.core.state.counts.requests == {"request_too_large": 1}


def test_workers_that_keep_a_request_s_task_are_named_when_it_has_ended() -> None:
    bench = Bench(prefill=2)
    bench.submit(n=2)
    legs = bench.of(actions.StartLeg)
    assert len({each.request for each in legs}) == 1
    assert legs[0].request
    bench.feed(events.Cancel(1, 1))
    (ended,) = bench.of(actions.RequestEnded)
    assert ended.request == legs[0].request
    assert set(ended.workers) == {each.worker for each in legs}


# --- regeneration ----------------------------------------------------------------------------


def _block(bench: Bench, overlay: bytes) -> None:
    """Classifiers block the run that the last event started."""
    prefill, decode = bench.legs()
    bench.close(prefill)
    bench.close(decode, Outcome.REGENERATE, overlay=overlay)


def test_a_blocked_output_is_run_again_with_what_is_laid_over_its_task() -> None:
    bench = Bench()
    bench.submit(task=b"task")
    _block(bench, b"+first")
    assert [each.task + each.overlay for each in bench.legs()] == [b"task+first"] * 2
    assert len({each.leg for each in bench.legs()}) == 2
    _block(bench, b"+second")
    assert [each.task + each.overlay for each in bench.legs()] == [b"task+second"] * 2, "not both"
    bench.close(bench.legs()[1])
    assert bench.core.state.counts.requests == {"finished": 1}


def test_what_is_laid_over_a_task_survives_a_retry() -> None:
    bench = Bench(prefill=2)
    bench.submit(task=b"task")
    _block(bench, b"+overlay")
    prefill, decode = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.close(decode, Outcome.CANCELLED)
    assert [each.task + each.overlay for each in bench.legs()] == [b"task+overlay"] * 2


def test_an_output_that_is_blocked_each_time_ends_at_the_bound() -> None:
    bench = Bench(max_regenerations=2)
    bench.submit()
    _block(bench, b"1")
    _block(bench, b"2")
    _block(bench, b"3")
    assert bench.ends() == [(1, "worker_error")]
    assert bench.at_rest()


def test_a_regenerated_output_that_had_begun_may_be_retried_again() -> None:
    bench = Bench(prefill=2, decode=0, max_retries=1)
    bench.worker(Phase.DECODE, 0, has_hook=True, has_classifiers=True)
    bench.submit()
    for _ in range(2):
        prefill, decode = bench.legs()
        bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
        bench.close(decode, Outcome.CANCELLED)
        prefill, decode = bench.legs()
        bench.feed(events.LegStarted(decode.worker, decode.leg))
        bench.close(decode, Outcome.REGENERATE)
        bench.close(prefill, Outcome.CANCELLED)
    assert len(bench.of(actions.StartLeg)) == 2
    assert bench.core.state.counts.retries == 2


# --- several routers --------------------------------------------------------------------------


def _refuse(bench: Bench, leg: actions.StartLeg, error: TandemError) -> list[Action]:
    """As tandem/worker/core/machine.py closes a leg that it has no room for."""
    return bench.close(leg, Outcome.FAILED, error=error, retryable=True)


FULL = QueueFullError("this worker runs 2 sequences already")


def test_slots_that_other_routers_hold_are_not_given_away() -> None:
    bench = Bench()
    bench.feed(events.WorkerLoad("prefill-0", 1))
    bench.submit(1, n=2)
    prefill, _ = bench.legs()
    bench.feed(events.WorkerLoad("prefill-0", 2))
    assert not bench.of(actions.StartLeg), "one of the two is ours, the other still another's"
    bench.feed(events.WorkerLoad("prefill-0", 1))
    assert [each.command.sequence for each in bench.legs()] == [2, 2]
    assert bench.core.state.fleet.workers[prefill.worker].other_legs == 0


def test_what_others_hold_is_known_before_the_first_leg_is_started() -> None:
    bench = Bench(decode=0, max_queue=9)
    bench.worker(Phase.DECODE)
    bench.submit(1, n=2)
    bench.submit(3, n=3)
    bench.worker(Phase.PREFILL, 1, max_sequences=9)
    bench.worker(Phase.DECODE, 1, max_sequences=3, other_legs=2)
    assert [each.command.sequence for each in bench.legs()] == [3, 3], "one slot of three is free"


def test_a_worker_that_others_load_is_chosen_after_an_idle_one() -> None:
    bench = Bench(prefill=2)
    bench.feed(events.WorkerLoad("prefill-0", 1))
    bench.submit()
    assert bench.legs()[0].worker == "prefill-1"


def test_a_sequence_that_finds_its_worker_full_waits_again_and_loses_no_attempt() -> None:
    bench = Bench(max_retries=0)
    bench.submit()
    prefill, decode = bench.legs()
    _refuse(bench, prefill, FULL)
    assert bench.cancelled() == [decode.leg]
    bench.close(decode, Outcome.CANCELLED)
    assert not bench.ends()
    assert not bench.of(actions.StartLeg), "it is full until it reports again"
    bench.feed(events.WorkerLoad("prefill-0", 0))
    again = bench.legs()
    assert [each.command.sequence for each in again] == [1, 1]
    bench.close(again[0])
    bench.close(again[1])
    assert bench.at_rest()
    assert (bench.core.state.counts.requeued, bench.core.state.counts.retries) == (1, 0)


def test_a_sequence_refused_on_both_sides_waits_again_once() -> None:
    bench = Bench(max_retries=0)
    bench.submit()
    for leg in bench.legs():
        _refuse(bench, leg, FULL)
    assert bench.core.state.counts.requeued == 1
    bench.feed(events.WorkerLoad("prefill-0", 0), events.WorkerLoad("decode-0", 0))
    assert len(bench.of(actions.StartLeg)) == 2


def test_a_burst_that_is_refused_waits_again_in_its_order() -> None:
    bench = Bench(max_queue=9, prefill=0)
    bench.worker(Phase.PREFILL, max_sequences=4)
    bench.worker(Phase.DECODE, max_sequences=4)
    for number in range(1, 5):
        bench.submit(number)
    bench.submit(5)
    legs = list(bench.core.state.legs.values())
    for leg in legs:
        error = FULL if leg.phase is Phase.PREFILL else None
        outcome = Outcome.CANCELLED if error is None else Outcome.FAILED
        closed = events.LegClosed(leg.worker.key, leg.number, outcome, error=error, retryable=True)
        bench.feed(closed)
    assert len(bench.core.state.waiting) == 5
    bench.feed(events.WorkerLoad("prefill-0", 0))
    assert [each.command.sequence for each in bench.of(actions.StartLeg)][::2] == [1, 2, 3, 4]


def test_a_refused_sequence_waits_no_longer_than_its_deadline_and_the_queue_s_bound() -> None:
    bench = Bench(max_queue=1)
    bench.submit(1, timeout_seconds=5.0)
    bench.submit(2)
    first = bench.core.state.fleet.workers["prefill-0"]
    assert len(first.legs) == 2
    bench.submit(3)
    open_legs = bench.core.state.legs
    number = next(each for each in first.legs if open_legs[each].sequence.number == 2)
    bench.feed(events.LegClosed("prefill-0", number, Outcome.FAILED, error=FULL, retryable=True))
    decode = bench.of(actions.CancelLeg)[0]
    bench.feed(events.LegClosed(decode.worker, decode.leg, Outcome.CANCELLED))
    assert bench.ends() == [(2, "queue_full")], "the queue holds sequence 3 already"
    bench = Bench()
    bench.submit(1, timeout_seconds=5.0)
    prefill, decode_leg = bench.legs()
    _refuse(bench, prefill, FULL)
    bench.close(decode_leg, Outcome.CANCELLED)
    bench.feed(events.Tick(), after=5.0)
    assert bench.ends() == [(1, "deadline_exceeded")]


def test_a_sequence_that_finds_its_worker_draining_waits_for_the_next_one() -> None:
    bench = Bench(max_retries=0)
    bench.submit()
    prefill, decode = bench.legs()
    _refuse(bench, prefill, DrainingError("this worker is shutting down"))
    bench.close(decode, Outcome.CANCELLED)
    assert not bench.ends()
    assert bench.core.state.fleet.workers["prefill-0"].draining, "it has said so itself"
    bench.worker(Phase.PREFILL, 1)
    assert bench.legs()[0].worker == "prefill-1"


def test_a_retry_that_finds_its_worker_full_still_avoids_the_pair_that_failed() -> None:
    bench = Bench(prefill=2)
    bench.submit()
    prefill, decode = bench.legs()
    assert prefill.worker == "prefill-0"
    bench.close(prefill, Outcome.FAILED, error=EngineError("broken"), retryable=True)
    bench.close(decode, Outcome.CANCELLED)
    second = bench.legs()
    assert second[0].worker == "prefill-1"
    _refuse(bench, second[0], FULL)
    bench.close(second[1], Outcome.CANCELLED)
    assert not bench.of(actions.StartLeg), "prefill-0 is free, and it failed"
    bench.feed(events.WorkerLoad("prefill-1", 0))
    assert bench.legs()[0].worker == "prefill-1"
    assert bench.core.state.counts.retries == 1


def test_a_worker_is_told_once_a_stream_that_a_pair_uses_it() -> None:
    bench = Bench(decode=0)
    assert not bench.of(actions.WorkerPaired)
    bench.worker(Phase.DECODE)
    assert {each.worker for each in bench.of(actions.WorkerPaired)} == {"prefill-0", "decode-0"}
    for draining in (True, False):
        bench.feed(events.WorkerDraining("decode-0", draining))
        assert not bench.of(actions.WorkerPaired)
    bench.worker(Phase.DECODE)
    assert [each.worker for each in bench.of(actions.WorkerPaired)] == ["decode-0"]


def test_a_worker_that_matches_none_or_drains_is_not_told_that_it_is_paired() -> None:
    bench = Bench(decode=0)
    bench.worker(Phase.DECODE, fingerprint=FINGERPRINT._replace(deployment_revision="2"))
    bench.worker(Phase.DECODE, 1, draining=True)
    assert not bench.of(actions.WorkerPaired)
    bench.feed(events.WorkerDraining("decode-1", False))
    assert {each.worker for each in bench.of(actions.WorkerPaired)} == {"prefill-0", "decode-1"}


# --- failures and retries --------------------------------------------------------------------


def test_a_retry_takes_another_pair_and_waits_until_both_old_legs_are_closed() -> None:
    bench = Bench(prefill=2, decode=1)
    bench.submit()
    prefill, decode = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    assert bench.cancelled() == [decode.leg]
    assert not bench.of(actions.StartLeg)
    bench.close(decode, Outcome.CANCELLED)
    again = bench.legs()
    assert again[0].worker != prefill.worker
    assert again[0].command.room != prefill.command.room
    assert bench.core.state.counts.retries == 1
    bench.close(again[0], Outcome.FAILED, error=EngineError("no"), retryable=True)
    assert bench.ends() == [(1, "engine_error")], "one retry is the bound"


def test_a_retry_that_waits_for_another_pair_lets_others_have_the_one_it_avoids() -> None:
    bench = Bench(prefill=0, decode=0)
    bench.worker(Phase.DECODE, max_sequences=9)
    bench.worker(Phase.PREFILL, 0)
    bench.worker(Phase.PREFILL, 1, max_sequences=1)
    bench.submit(1)
    failing = bench.legs()
    bench.submit(2)
    busy = bench.legs()
    assert [failing[0].worker, busy[0].worker] == ["prefill-0", "prefill-1"]
    bench.close(failing[0], Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.close(failing[1], Outcome.CANCELLED)
    assert not bench.of(actions.StartLeg), "prefill-1 is busy, prefill-0 has failed"
    for number in (3, 4):
        bench.submit(number)
        assert bench.legs()[0].worker == "prefill-0"
    bench.submit(5)
    bench.close(busy[0])
    assert [(each.command.sequence, each.worker) for each in bench.legs()] == [
        (1, "prefill-1"),
        (1, "decode-0"),
    ]


def test_what_may_pass_a_waiting_retry_takes_no_place_in_the_queue() -> None:
    bench = Bench(prefill=0, max_queue=1)
    bench.worker(Phase.PREFILL, 0, max_sequences=2)
    bench.worker(Phase.PREFILL, 1, max_sequences=1, other_legs=1)
    bench.submit(1)
    prefill, decode = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.close(decode, Outcome.CANCELLED)
    assert len(bench.core.state.waiting) == 1
    bench.submit(2, n=3)
    assert bench.ends() == [(2, "queue_full"), (3, "queue_full"), (4, "queue_full")]
    bench.submit(5, n=2)
    assert len(bench.of(actions.StartLeg)) == 4
    assert len(bench.core.state.waiting) == 1


def test_a_retry_takes_an_overdue_worker_rather_than_the_pair_that_failed() -> None:
    bench = Bench(prefill=1, decode=0, settle_seconds=1.0)
    bench.worker(Phase.DECODE, 1)
    bench.submit(1)
    prefill, decode = bench.legs()
    bench.feed(events.Cancel(1, 1))
    bench.close(prefill, Outcome.CANCELLED)
    bench.feed(events.Tick(), after=1.0)
    assert bench.of(actions.SettleOverdue)
    bench.worker(Phase.DECODE, 0)
    bench.submit(2)
    prefill, decode = bench.legs()
    assert decode.worker == "decode-0"
    bench.close(decode, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.close(prefill, Outcome.CANCELLED)
    assert bench.legs()[1].worker == "decode-1"


def test_a_retry_prefers_workers_that_have_not_failed_it() -> None:
    bench = Bench(prefill=2, decode=2)
    bench.submit()
    prefill, decode = bench.legs()
    bench.close(decode, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.close(prefill, Outcome.CANCELLED)
    assert [each.worker for each in bench.legs()] == ["prefill-1", "decode-1"]


def test_as_many_retries_are_made_as_are_allowed() -> None:
    bench = Bench(prefill=2, max_retries=3)
    bench.submit()
    for _ in range(3):
        prefill, decode = bench.legs()
        bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
        bench.close(decode, Outcome.CANCELLED)
    prefill, decode = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    assert bench.ends() == [(1, "engine_error")]


def test_nothing_is_retried_without_another_pair_or_when_it_was_shown_or_must_not_be() -> None:
    for prefill_workers, shown, retryable in ((1, False, True), (2, True, True), (2, False, False)):
        bench = Bench(prefill=prefill_workers)
        bench.submit()
        _, decode = bench.legs()
        if shown:
            bench.feed(events.LegStarted(decode.worker, decode.leg))
        error = HookError("no")
        bench.close(decode, Outcome.FAILED, error=error, retryable=retryable)
        assert bench.ends() == [(1, "hook_failed")]


def test_a_lost_worker_closes_its_legs_and_the_rest_is_tried_elsewhere() -> None:
    bench = Bench(prefill=1, decode=2)
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.WorkerLoad(decode.worker, 2))  # another router's, too
    bench.feed(events.WorkerDown(decode.worker, "killed"))
    assert bench.cancelled() == [prefill.leg]
    bench.close(prefill, Outcome.CANCELLED)
    assert bench.legs()[1].worker != decode.worker


def test_a_prefill_lost_after_the_hand_over_harms_nothing() -> None:
    bench = Bench()
    bench.submit()
    prefill, decode = bench.legs()
    bench.feed(events.LegStarted(decode.worker, decode.leg))
    bench.feed(events.WorkerDown(prefill.worker, "killed"))
    assert bench.ends() == []
    bench.close(decode)
    assert bench.at_rest()


def test_a_retry_whose_other_pair_vanishes_ends_with_the_first_error() -> None:
    bench = Bench(prefill=2)
    bench.submit()
    prefill, decode = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.feed(events.WorkerDown("prefill-1", "gone"))
    bench.close(decode, Outcome.CANCELLED)
    assert bench.ends() == [(1, "engine_error")]


def test_a_leg_that_does_not_settle_keeps_its_slot_and_nobody_waits_for_it() -> None:
    bench = Bench(prefill=2, settle_seconds=10.0)
    bench.submit(1)
    prefill, decode = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.feed(events.Tick(), after=10.0)
    assert [each.leg for each in bench.of(actions.SettleOverdue)] == [decode.leg]
    assert bench.ends() == [(1, "engine_error")]
    assert bench.core.state.counts.settle_overdue == 1
    bench.submit(2, n=2)
    assert len(bench.of(actions.StartLeg)) == 2, "one of two decode slots is still taken"
    bench.close(decode, Outcome.CANCELLED)
    assert len(bench.of(actions.StartLeg)) == 2


def test_a_worker_with_overdue_legs_is_chosen_last() -> None:
    bench = Bench(decode=2, settle_seconds=1.0)
    bench.submit(1)
    prefill, decode = bench.legs()
    bench.feed(events.Cancel(1, 1))
    bench.close(prefill, Outcome.CANCELLED)
    bench.feed(events.Tick(), after=1.0)
    for number in (2, 3):
        bench.submit(number)
        assert bench.legs()[1].worker != decode.worker


def test_a_slot_that_becomes_free_by_any_event_is_given_away_at_once() -> None:
    for free in (
        lambda bench, leg: bench.close(leg, Outcome.CANCELLED),
        lambda bench, leg: bench.feed(events.WorkerLoad(leg.worker, 1)),
        lambda bench, leg: bench.feed(events.WorkerDraining("prefill-9", False)),
        lambda bench, leg: bench.worker(Phase.PREFILL, 7),
    ):
        bench = Bench(prefill=0, decode=0)
        bench.worker(Phase.DECODE, max_sequences=9)
        bench.worker(Phase.PREFILL, max_sequences=2, other_legs=1)
        bench.worker(Phase.PREFILL, 9, draining=True)
        bench.submit(1)
        prefill, _ = bench.legs()
        bench.submit(2)
        assert not bench.of(actions.StartLeg)
        free(bench, prefill)
        assert [each.command.sequence for each in bench.of(actions.StartLeg)] == [2, 2]


def test_queued_sequences_outlive_the_last_pair_by_a_bound() -> None:
    bench = Bench(pair_wait_seconds=5.0)
    bench.submit(1, n=2)
    bench.submit(3)
    bench.feed(events.WorkerDown("decode-0", "gone"))
    bench.feed(events.Tick(), after=4.9)
    assert bench.ends() == []
    bench.feed(events.Tick(), after=0.1)
    assert bench.ends() == [(3, "no_pair")]


def test_a_pair_that_came_back_gives_those_that_wait_the_whole_bound_again() -> None:
    bench = Bench(pair_wait_seconds=5.0)
    bench.submit(1, n=3)
    bench.feed(events.WorkerDraining("decode-0", True))
    bench.feed(events.WorkerDraining("decode-0", False), after=4.0)
    bench.feed(events.WorkerDraining("decode-0", True), after=4.0)
    bench.feed(events.Tick(), after=4.0)
    assert bench.ends() == []
    bench.feed(events.Tick(), after=1.0)
    assert bench.ends() == [(3, "no_pair")]


def test_a_request_of_a_frontend_that_has_gone_is_not_run() -> None:
    bench = Bench()
    bench.feed(events.FrontendDown(1))
    # Not through the ledger, which would wait for its end.
    late = submits.submit(1, model="tiny", timeout_seconds=1, task=b"")
    assert bench.core.handle(bench.now, [late]) == []
    assert bench.at_rest()


def test_events_of_another_worker_s_or_a_closed_leg_change_nothing() -> None:
    bench = Bench(decode=2)
    bench.submit()
    _, decode = bench.legs()
    other = "decode-1" if decode.worker == "decode-0" else "decode-0"
    bench.feed(events.LegClosed(other, decode.leg, Outcome.FINISHED))
    assert bench.done == []
    bench.close(decode)
    bench.close(decode)
    assert bench.done == []


def test_an_ended_request_leaves_nothing_to_the_garbage_collector() -> None:
    bench = Bench()
    gc.collect()
    before = kept_objects()
    gc.disable()
    try:
        bench.submit(n=2)
        for leg in bench.of(actions.StartLeg):
            bench.close(leg)
        assert bench.core.idle
        bench.done.clear()
        assert kept_objects() == before
    finally:
        gc.enable()


def kept_objects() -> list[Request | Sequence]:
    return [each for each in gc.get_objects() if type(each) in (Request, Sequence)]


# --- shutting down, and the checks themselves ------------------------------------------------


def test_a_drain_refuses_and_an_abandon_ends_everything() -> None:
    bench = Bench()
    bench.submit(1)
    legs = [each.leg for each in bench.of(actions.StartLeg)]
    bench.feed(events.Drain())
    bench.submit(2)
    assert bench.ends() == [(2, "draining")]
    bench.feed(events.Abandon())
    assert bench.ends() == [(1, "router_lost")]
    assert bench.cancelled() == legs


def test_an_abandon_tells_apart_what_had_started_and_what_still_waited() -> None:
    bench = Bench(prefill=2, decode=1, max_queue=9)
    bench.submit(1)  # runs
    bench.submit(2)  # runs, and then waits to run again
    prefill, decode = bench.legs()
    bench.close(prefill, Outcome.FAILED, error=EngineError("no"), retryable=True)
    bench.submit(3)  # waits
    bench.feed(events.Abandon())
    assert bench.ends() == [(1, "router_lost"), (2, "router_lost"), (3, "draining")]
    bench.submit(4)
    assert bench.ends() == [(4, "draining")]
    bench.close(decode, Outcome.CANCELLED)
    assert not bench.of(actions.StartLeg)


def test_an_abandon_takes_what_is_to_be_regenerated_for_started() -> None:
    bench = Bench()
    bench.submit()
    bench.close(bench.legs()[1], Outcome.REGENERATE)
    bench.feed(events.Abandon())
    assert bench.ends() == [(1, "router_lost")]


def test_the_check_names_every_broken_rule() -> None:
    bench = Bench()
    bench.submit()
    bench.core.state.rooms.add(5)
    bench.core.state.open_sequences += 1
    with pytest.raises(InvariantError) as caught:
        check(bench.core.state)
    assert "rooms in use" in str(caught.value)
    assert "2 open sequences are counted, 1 are there" in str(caught.value)


def test_a_source_of_rooms_that_repeats_itself_is_an_error_not_a_hang() -> None:
    bench = Bench()
    bench.core._lifecycle._legs._new_room = lambda: 7
    bench.submit(1)
    with pytest.raises(RuntimeError, match="repeats itself"):
        bench.submit(2)
