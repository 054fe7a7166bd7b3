"""What programs see of the executor's core, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from core_parts import LENGTH, MOST_SEQUENCES, MOST_UNREAD, asked, core, wake

from tandem.errors import WorkerError
from tandem_executor.core import ExecutorCore
from tandem_executor.errors import FullError, ShutDownError
from tandem_executor.ranking import Ranking
from tandem_executor.requests import OutputConfig
from tandem_executor.waiters import Waiter


def started(executor: ExecutorCore, **fields: Any) -> int:
    (request_id,) = executor.enqueue([asked(**fields)], 0.0)
    assert [start.request_id for start in executor.starts()] == [request_id]
    return request_id


@pytest.mark.promise("S2-067")
def test_a_streamed_request_gives_a_response_for_each_token_and_one_that_is_final() -> None:
    executor = core()
    request_id = started(executor, streaming=True)
    executor.tokens(request_id, 0, [1, 2, 3], [-1.0, -2.0, -3.0])
    executor.finish(request_id, 0, LENGTH)
    results = [response.result for response in executor.read(request_id)]
    assert [result.output_token_ids for result in results] == [[[1]], [[2]], [[3]]]
    assert [result.is_final for result in results] == [False, False, True]


@pytest.mark.promise("S2-068")
def test_a_request_that_is_not_streamed_gives_one_result_with_everything() -> None:
    executor = core()
    request_id = started(executor)
    executor.tokens(request_id, 0, [1], [])
    assert executor.ready(request_id) == 0
    executor.tokens(request_id, 0, [2], [])
    executor.finish(request_id, 0, LENGTH)
    (only,) = executor.read(request_id)
    assert only.result.output_token_ids == [[7, 8, 1, 2]]
    assert only.result.is_final


def test_all_tokens_so_far_are_in_each_response_where_that_is_asked_for() -> None:
    executor = core()
    request_id = started(executor, streaming=True, return_all_generated_tokens=True)
    executor.tokens(request_id, 0, [1, 2], [])
    executor.tokens(request_id, 0, [3], [])
    outputs = [response.result.output_token_ids for response in executor.read(None)]
    assert outputs == [[[1]], [[1, 2]], [[1, 2, 3]]]
    executor.finish(request_id, 0, LENGTH)
    assert executor.read(None)[0].result.output_token_ids == [[1, 2, 3]]


def test_log_probabilities_are_those_of_all_tokens_so_far_and_add_up() -> None:
    executor = core()
    wanted = OutputConfig(return_log_probs=True)
    request_id = started(executor, streaming=True, output_config=wanted)
    executor.tokens(request_id, 0, [1, 2], [-1.0, -0.5])
    results = [response.result for response in executor.read(request_id)]
    assert [result.log_probs for result in results] == [[[-1.0]], [[-1.0, -0.5]]]
    assert [result.cum_log_probs for result in results] == [[-1.0], [-1.5]]
    executor.finish(request_id, 0, LENGTH)
    (last,) = executor.read(request_id)
    assert last.result.output_token_ids == [[]]
    assert last.result.log_probs == [[-1.0, -0.5]]


@pytest.mark.promise("S2-080")
def test_what_finds_the_queue_full_is_refused_at_once_and_all_or_none_is_taken() -> None:
    executor = core(max_queue_size=2)
    with pytest.raises(FullError, match="Maximum queue size of 2"):
        executor.enqueue([asked()] * 3, 0.0)
    assert executor.enqueue([asked()] * 2, 0.0) == [1, 2]
    with pytest.raises(FullError):
        executor.enqueue([asked()], 0.0)
    executor.starts()
    executor.tokens(1, 0, [5], [])
    assert executor.enqueue([asked()], 0.0) == [3], "what has begun waits no longer"


@pytest.mark.parametrize(
    ("fields", "bound"),
    [
        ({"n": MOST_SEQUENCES + 1}, "max_open_sequences"),
        ({"max_tokens": 25}, "max_unread_tokens"),
    ],
)
def test_what_could_never_start_ends_with_the_bound_it_passes(
    fields: dict[str, int], bound: str
) -> None:
    executor = core()
    executor.enqueue([asked(**fields)], 0.0)
    (response,) = executor.read(1)
    assert bound in response.error_msg
    assert response.error_code == "request_too_large"


def test_a_request_gets_no_more_tokens_than_it_asked_for() -> None:
    executor = core()
    request_id = started(executor, max_tokens=2)
    executor.tokens(request_id, 0, [1, 2, 3], [])
    (response,) = executor.read(request_id)
    assert response.error_code == "worker_error"
    assert executor.cancels() == [request_id]


@pytest.mark.promise("S2-081")
def test_shutdown_wakes_whoever_waits_and_lets_nothing_in() -> None:
    executor = core()
    request_id = started(executor)
    woken: list[int | None] = []
    for which in (None, request_id):
        executor.wait(Waiter(which, lambda which=which: woken.append(which)))
    executor.shut_down()
    executor.shut_down()
    assert woken == [None, request_id]
    with pytest.raises(ShutDownError):
        executor.enqueue([asked()], 0.0)
    executor.finish(request_id, 0, LENGTH)
    assert executor.next_deadline() is None


def test_a_core_without_backend_fails_what_is_open_and_takes_nothing_new() -> None:
    executor = core()
    request_id = started(executor)
    woken: list[int] = []
    executor.wait(Waiter(None, lambda: woken.append(1)))
    executor.wait(Waiter(None, lambda: woken.append(2)))
    executor.stop(WorkerError("the backend is gone"))
    assert woken == [1, 2]
    assert executor.read(request_id)[0].error_code == "worker_error"
    with pytest.raises(ShutDownError, match="failed"):
        executor.enqueue([asked()], 0.0)
    with pytest.raises(ShutDownError, match="failed"):
        executor.wait(Waiter(None, lambda: None))


def test_one_who_was_woken_and_leaves_without_reading_wakes_another() -> None:
    executor = core()
    request_id = started(executor, streaming=True)
    woken: list[str] = []
    first = Waiter(None, lambda: woken.append("first"))
    executor.wait(first)
    executor.wait(Waiter(None, lambda: woken.append("second")))
    executor.tokens(request_id, 0, [1], [])
    wake(executor)
    assert woken == ["first"]
    executor.forget(first)
    assert woken == ["first", "second"]


def test_of_those_who_wait_for_any_one_is_woken_for_all_that_came() -> None:
    executor = core(max_open_sequences=3)
    requests = [started(executor, streaming=True) for _ in range(3)]
    woken: list[int] = []
    for number in range(3):
        executor.wait(Waiter(None, lambda number=number: woken.append(number)))
    for request_id in requests:
        executor.tokens(request_id, 0, [1], [])
        executor.tokens(request_id, 0, [2], [])
    wake(executor)
    assert woken == [0]
    executor.tokens(requests[0], 0, [3], [])
    wake(executor)
    assert woken == [0], "what is unread is for the one who is awake"
    assert len(executor.read(None)) == 7
    executor.tokens(requests[0], 0, [4], [])
    wake(executor)
    assert woken == [0, 1]


def test_one_who_is_awake_reads_what_comes_before_it_looks() -> None:
    executor = core()
    requests = [started(executor, streaming=True) for _ in range(2)]
    woken: list[int] = []
    for number in range(2):
        executor.wait(Waiter(None, lambda number=number: woken.append(number)))
    for request_id in (requests[0], requests[0], requests[1]):
        executor.tokens(request_id, 0, [1], [])
        wake(executor)
    assert woken == [0]


def test_one_who_waits_no_longer_is_not_woken_for_another() -> None:
    executor = core()
    request_id = started(executor)
    woken: list[str] = []
    for which in (None, request_id):
        gone = Waiter(which, lambda: woken.append("gone"))
        executor.wait(gone)
        executor.wait(Waiter(which, lambda which=which: woken.append(f"waits for {which}")))
        executor.forget(gone)
    executor.finish(request_id, 0, LENGTH)
    wake(executor)
    assert woken == [f"waits for {request_id}", "waits for None"]


def test_what_a_failed_request_drops_lets_another_start_before_anybody_reads() -> None:
    executor = core(max_unread_tokens=4)
    request_id = started(executor)
    executor.tokens(request_id, 0, [1, 2, 3], [])
    executor.enqueue([asked()], 0.0)
    assert executor.starts() == []
    executor.fail(request_id, WorkerError("it broke"))
    assert len(executor.starts()) == 1


def test_what_was_read_before_the_end_comes_back_no_second_time() -> None:
    executor = core()
    first = started(executor, max_tokens=12, streaming=True)
    executor.tokens(first, 0, [1] * 12, [])
    assert len(executor.read(first)) == 12
    executor.finish(first, 0, LENGTH)
    executor.read(first)
    executor.enqueue([asked(max_tokens=MOST_UNREAD // 2) for _ in range(3)], 0.0)
    assert len(executor.starts()) == 2


def test_a_request_that_ended_holds_what_is_unread_of_it_and_gives_each_token_back_once() -> None:
    executor = core(max_unread_tokens=8)
    first = started(executor, max_tokens=4, streaming=True)
    executor.tokens(first, 0, [1, 2, 3], [])
    executor.finish(first, 0, LENGTH)
    executor.enqueue([asked(max_tokens=6)], 0.0)
    assert executor.starts() == [], "three of eight are unread"
    executor.read(first)
    assert [start.request_id for start in executor.starts()] == [2]
    executor.enqueue([asked(max_tokens=3)], 0.0)
    assert executor.starts() == [], "six of eight may still come"


def test_a_look_at_a_request_that_waits_costs_no_room() -> None:
    executor = core(max_unread_tokens=8)
    first = started(executor, max_tokens=8)
    executor.enqueue([asked(max_tokens=4), asked(max_tokens=4)], 0.0)
    assert executor.read(2) == []
    executor.cancel(first)
    executor.read(first)
    assert [start.request_id for start in executor.starts()] == [2, 3]


def test_a_ranking_does_not_keep_what_was_taken_out() -> None:
    ranking = Ranking()
    ranking.add(0, -1.0)
    for id in range(1, 10_000):
        ranking.add(id, float(id))
        ranking.discard(id)
    assert ranking.first() == (0, -1.0)
    assert len(ranking._heap) < 200


def test_one_of_thousands_who_wait_leaves_without_a_look_at_the_others() -> None:
    looks = 0

    class Counted(Waiter):
        __hash__ = Waiter.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return self is other

    executor = core()
    executor.enqueue([asked()], 0.0)
    waiters = [Counted(None, lambda: None) for _ in range(1000)]
    for waiter in waiters:
        executor.wait(waiter)
    for waiter in reversed(waiters):
        executor.forget(waiter)
    assert looks == 0


def test_rows_of_logits_are_bounded_until_all_of_a_request_was_read() -> None:
    executor = core(max_logits_rows=6)
    wanting = asked()._replace(logits_rows=4)
    executor.enqueue([wanting, wanting, asked()._replace(logits_rows=7)], 0.0)
    assert [start.request_id for start in executor.starts()] == [1]
    executor.tokens(1, 0, [5], [])
    executor.finish(1, 0, LENGTH)
    assert executor.starts() == [], "nobody has read the rows"
    executor.read(1)
    assert [start.request_id for start in executor.starts()] == [2]
    assert "max_logits_rows" in executor.read(3)[0].error_msg
    executor.cancel(2)
    executor.read(2)
    executor.enqueue([wanting], 0.0)
    assert len(executor.starts()) == 1
