"""What the router's core tells of traced sequences, and the spans made of it."""

from __future__ import annotations

from typing import Any

import pytest
from router_bench import Memory

from tandem.endings import Outcome
from tandem.errors import WorkerLostError
from tandem.tracing.spans import Span
from tandem.v1 import router_pb2
from tandem_router import spans
from tandem_router.core import actions, events
from tandem_router.core.sequences import MOST_MOMENTS
from tandem_router.ingress import read_submit
from tandem_router.permissions import Permissions

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT, FIRST = 5, 1001


class Bench(Memory):
    """A core with two workers of each phase."""

    def __init__(self, **bounds: Any) -> None:
        super().__init__(2, 2, **bounds)

    def submit(self, n: int = 1, **fields: Any) -> list[actions.Action]:  # type: ignore[override]
        given = {"trace_id": TRACE, "parent_span": PARENT, "first_span": FIRST, **fields}
        return super().submit(1, n=n, **given)

    def traced(self) -> list[actions.SequenceTraced]:
        return self.of_all(actions.SequenceTraced)

    def spans(self) -> list[Span]:
        return [spans.of_sequence(each) for each in self.traced()]


def test_each_sequence_has_a_span_and_its_legs_hang_on_it() -> None:
    bench = Bench()
    bench.submit(n=2)
    parents = [leg.command.parent_span for leg in bench.started()]
    assert parents == [FIRST, FIRST, FIRST + 1, FIRST + 1]
    bench.end(*bench.started())
    first, second = bench.spans()
    assert (first.span_id, second.span_id) == (FIRST, FIRST + 1)
    assert {first.parent_id, second.parent_id} == {PARENT}
    assert (first.trace_id, first.name) == (TRACE, "route")
    assert (first.began, first.ended) == (0.0, 2.0)
    assert [each.attributes["tandem.output_index"] for each in (first, second)] == [0, 1]
    assert first.attributes["tandem.prefill.worker"] == "prefill-0"
    assert first.attributes["tandem.outcome"] == "finished"


def test_a_router_that_makes_no_spans_hands_the_frontend_s_on() -> None:
    bench = Bench()
    bench.submit(first_span=0)
    assert [leg.command.parent_span for leg in bench.started()] == [PARENT, PARENT]
    bench.end(*bench.started())
    assert bench.spans() == []


def test_what_the_frontend_does_not_trace_costs_no_action() -> None:
    bench = Bench()
    bench.submit(parent_span=0, first_span=0)
    assert [leg.command.parent_span for leg in bench.started()] == [0, 0]
    bench.end(*bench.started())
    assert bench.spans() == []


def test_a_retry_is_told_with_its_reason_and_the_pair_that_came_after() -> None:
    bench = Bench()
    bench.submit()
    prefill, decode = bench.started()
    error = WorkerLostError("gone")
    bench.end(prefill, outcome=Outcome.FAILED, error=error, retryable=True)
    bench.end(decode, outcome=Outcome.CANCELLED)
    bench.end(*bench.started()[2:])
    (span,) = bench.spans()
    assert [(event.name, event.at) for event in span.events] == [
        ("pair_chosen", 0.0),
        ("retry", 1.0),
        ("pair_chosen", 2.0),
    ]
    assert span.events[1].attributes == {"error.type": "worker_lost"}
    assert span.attributes["tandem.retries"] == 1
    assert span.attributes["tandem.prefill.worker"] == "prefill-1"
    assert span.attributes["tandem.queue.seconds"] == 0.0
    assert span.error is None


def test_what_goes_round_for_long_keeps_a_bounded_trail() -> None:
    bench = Bench(max_regenerations=MOST_MOMENTS)
    bench.submit(timeout_seconds=1000.0)
    for _ in range(MOST_MOMENTS):
        prefill, decode = bench.started()[-2:]
        bench.end(prefill)
        bench.end(decode, outcome=Outcome.REGENERATE, overlay=b"o")
    bench.feed(events.FrontendDown(1))
    (span,) = bench.spans()
    assert 20 < len(span.events) < MOST_MOMENTS


def test_a_regeneration_is_told() -> None:
    bench = Bench()
    bench.submit()
    prefill, decode = bench.started()
    bench.end(prefill)
    bench.end(decode, outcome=Outcome.REGENERATE, overlay=b"o")
    bench.end(*bench.started()[2:])
    (span,) = bench.spans()
    assert [event.name for event in span.events] == ["pair_chosen", "regenerate", "pair_chosen"]


def test_a_failure_is_the_span_s_error() -> None:
    bench = Bench(max_retries=0)
    bench.submit()
    prefill, _ = bench.started()
    error = WorkerLostError("gone")
    bench.end(prefill, outcome=Outcome.FAILED, error=error, retryable=True)
    (span,) = bench.spans()
    assert span.error is error
    assert span.attributes["tandem.outcome"] == "worker_lost"


def test_what_waits_until_its_deadline_spends_all_of_it_in_the_queue() -> None:
    bench = Bench()
    bench.submit(n=5)  # four slots
    bench.feed(after=61.0)
    last = bench.spans()[-1]
    assert last.attributes["tandem.output_index"] == 4
    assert last.attributes["tandem.queue.seconds"] == pytest.approx(61.0)
    assert "tandem.prefill.worker" not in last.attributes
    assert last.events == []
    assert last.error is not None
    assert last.error.code == "deadline_exceeded"


@pytest.mark.promise("S5-655")
def test_the_wait_for_a_pair_is_a_span_below_the_sequence_s() -> None:
    bench = Bench()
    bench.submit(n=3)  # of which two run at once
    bench.end(*bench.started())
    bench.end(*bench.started()[4:])
    waits = [spans.of_admission(each) for each in bench.traced()]
    assert [wait.parent_id for wait in waits] == [FIRST, FIRST + 1, FIRST + 2]
    assert all(wait.inside and wait.trace_id == TRACE for wait in waits)
    assert len({wait.span_id for wait in waits}) == 3
    routes = bench.spans()
    assert [wait.began for wait in waits] == [route.began for route in routes]
    queued = [route.attributes["tandem.queue.seconds"] for route in routes]
    assert [wait.ended - wait.began for wait in waits] == queued


@pytest.mark.promise("S5-655")
def test_what_never_found_a_pair_waited_until_its_end() -> None:
    bench = Bench()
    bench.submit(n=5)  # four slots
    bench.feed(after=61.0)
    wait = spans.of_admission(bench.traced()[-1])
    assert wait.ended - wait.began == pytest.approx(61.0)


def test_a_refused_request_has_a_span_for_each_sequence() -> None:
    bench = Bench()
    bench.submit(n=2, model="other")
    assert [span.span_id for span in bench.spans()] == [FIRST, FIRST + 1]
    for span in bench.spans():
        assert span.error is not None
        assert span.attributes["tandem.outcome"] == "model_not_found"


def test_a_frontend_that_goes_away_ends_the_spans_of_its_requests() -> None:
    bench = Bench()
    bench.submit()
    bench.feed(events.FrontendDown(1), after=1.0)
    (span,) = bench.spans()
    assert span.attributes["tandem.outcome"] == "cancelled"


@pytest.mark.parametrize(("parent", "tracing"), [(0, True), (7, False), (7, True)])
def test_spans_are_numbered_only_where_router_and_frontend_trace(
    parent: int, tracing: bool
) -> None:
    message = router_pb2.Submit(first_sequence=1, n=2, timeout_ms=1000, parent_span=parent)
    submit = read_submit(
        1, message, permissions=Permissions(), max_timeout_seconds=60, tracing=tracing
    )
    assert submit.message.parent_span == parent
    assert bool(submit.first_span) is (parent != 0 and tracing)
