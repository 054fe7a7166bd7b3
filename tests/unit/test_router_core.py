"""Rules of the router's core that tests/unit/router_traces cannot say."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
from router_bench import FINGERPRINT, Bench
from simulated import submits
from simulated.router_invariants import InvariantError, check

from tandem.endings import Outcome
from tandem.message_limits import MAX_OUTPUTS, MAX_TASK_BYTES
from tandem.v1 import common_pb2
from tandem_router import translate
from tandem_router.core import actions, events
from tandem_router.core.sequences import Request, Sequence
from tandem_router.core.values import Fingerprint, Phase


def test_the_fingerprint_has_every_field_of_the_wire_s() -> None:
    known = list(common_pb2.Fingerprint.DESCRIPTOR.fields_by_name)
    assert list(Fingerprint._fields) == [*known, "unknown_fields"]


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


def test_each_sequence_of_a_request_has_its_own_legs_and_room() -> None:
    bench = Bench(prefill=2, decode=2)
    starts = [each for each in bench.submit(n=3) if isinstance(each, actions.StartLeg)]
    assert [each.command.output_index for each in starts] == [0, 0, 1, 1, 2, 2]
    assert len({each.leg for each in starts}) == 6
    assert len({each.command.room for each in starts}) == 3
    assert {each.worker for each in starts} == {"prefill-0", "prefill-1", "decode-0", "decode-1"}


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


_MORE: dict[type, Any] = {str: "x", int: 1, bytes: b"x"}


def test_workers_that_differ_in_any_field_are_never_paired() -> None:
    for name in Fingerprint._fields[1:]:
        if name == "aggregated":
            continue  # tests/unit/router_traces/ways.txt
        bench = Bench(decode=0)
        value = FINGERPRINT._asdict()[name]
        other = FINGERPRINT._replace(**{name: value + _MORE[type(value)]})
        bench.worker(Phase.DECODE, fingerprint=other)
        bench.submit()
        assert bench.ends() == [(1, "no_pair")]
        assert bench.core.snapshot().counts.pairs_rejected == {name: 1}
        assert bench.core.refusal("decode-0").startswith(f"{name} is ")


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
    bench = Bench(rooms=itertools.repeat(7))
    bench.submit(1)
    with pytest.raises(RuntimeError, match="repeats itself"):
        bench.submit(2)
