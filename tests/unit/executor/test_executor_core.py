"""The executor's core by itself: whatever program and backend do, in whatever order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.errors import WorkerError
from tandem.executor.core import Asked, ExecutorCore
from tandem.executor.errors import FullError, ShutDownError
from tandem.executor.ranking import Ranking
from tandem.executor.requests import OutputConfig, Request, SamplingConfig
from tandem.executor.responses import FinishReason, Response
from tandem.executor.unread import Completion
from tandem.executor.waiters import Waiter

MOST_SEQUENCES, MOST_UNREAD, MOST_QUEUE = 4, 24, 8
LENGTH = Completion(FinishReason.LENGTH)
SECONDS = 100.0


def core(**changes: int) -> ExecutorCore:
    bounds = {
        "max_queue_size": MOST_QUEUE,
        "max_open_sequences": MOST_SEQUENCES,
        "max_unread_tokens": MOST_UNREAD,
    }
    return ExecutorCore(**bounds | changes)


def asked(*, n: int = 1, max_tokens: int = 4, seconds: float = SECONDS, **fields: Any) -> Asked:
    sampling = SamplingConfig(num_return_sequences=n)
    request = Request([7, 8], max_tokens=max_tokens, sampling_config=sampling, **fields)
    return Asked(request, None, n, n * max_tokens, seconds)


@dataclass
class Known:
    """What a test knows of a request."""

    asked: Asked
    deadline: float
    started: bool = False
    failed: bool = False
    brought: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[int, FinishReason] = field(default_factory=dict)
    read: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    reasons: dict[int, FinishReason] = field(default_factory=dict)
    finals: int = 0

    @property
    def ended(self) -> bool:
        return self.failed or len(self.finished) == self.asked.sequences

    @property
    def waits(self) -> bool:
        return not (self.arrived or self.finished or self.failed)

    @property
    def arrived(self) -> int:
        return sum(map(len, self.brought.values()))

    def end(self, reason: FinishReason) -> None:
        for sequence in range(self.asked.sequences):
            self.finished.setdefault(sequence, reason)


class Program(RuleBasedStateMachine):
    """A program and a backend that do what they may."""

    def __init__(self) -> None:
        super().__init__()
        self.core = core()
        self.now = 0.0
        self.known: dict[int, Known] = {}
        self.token = 100
        self.cancelled: set[int] = set()
        self.waiters: list[tuple[Waiter, list[int]]] = []

    # --- the program ---

    @rule(
        n=st.integers(1, MOST_SEQUENCES),
        max_tokens=st.integers(1, 6),
        streaming=st.booleans(),
        priority=st.sampled_from([0.0, 0.5, 1.0]),
        seconds=st.sampled_from([3.0, 30.0]),
    )
    def enqueue(
        self, n: int, max_tokens: int, streaming: bool, priority: float, seconds: float
    ) -> None:
        each = asked(
            n=n, max_tokens=max_tokens, streaming=streaming, priority=priority, seconds=seconds
        )
        if sum(known.waits for known in self.known.values()) == MOST_QUEUE:
            with pytest.raises(FullError):
                self.core.enqueue([each], self.now)
            return
        (request_id,) = self.core.enqueue([each], self.now)
        assert request_id == len(self.known) + 1
        self.known[request_id] = Known(each, self.now + seconds)

    @rule(which=st.integers(0, 50))
    def cancel(self, which: int) -> None:
        self.core.cancel(which)
        if (known := self.known.get(which)) is not None and not known.ended:
            known.end(FinishReason.CANCELLED)
            if known.started:
                self.cancelled.add(which)

    @rule(which=st.none() | st.integers(1, 50))
    def read(self, which: int | None) -> None:
        if which is not None and (which not in self.known or self.known[which].finals):
            (response,) = self.core.read(which)
            assert response.has_error()
            assert self.core.ready(which) == 0
            return
        count = self.core.ready(which)
        responses = self.core.read(which)
        assert len(responses) == count
        for response in responses:
            assert which in (None, response.request_id)
            self.take(response)
        assert self.core.ready(which) == 0

    def take(self, response: Response) -> None:
        known = self.known[response.request_id]
        assert not known.finals, "nothing follows the last response"
        if response.has_error():
            assert known.failed
            known.finals += 1
            return
        result = response.result
        sequence = result.sequence_index
        assert sequence not in known.reasons, "nothing follows a sequence's last response"
        (tokens,) = result.output_token_ids
        if known.asked.request.streaming:
            assert len(tokens) == 1 or (not tokens and result.is_sequence_final)
            known.read[sequence] += tokens
        else:
            assert tokens[:2] == [7, 8]
            known.read[sequence] = tokens[2:]
        if result.is_sequence_final:
            known.reasons[sequence] = result.finish_reasons[0]
            assert known.reasons[sequence] is known.finished[sequence]
            assert known.read[sequence] == known.brought[sequence]
        else:
            assert result.finish_reasons == [FinishReason.NOT_FINISHED]
        if result.is_final:
            known.finals += 1
            assert len(known.reasons) == known.asked.sequences

    @rule(which=st.none() | st.integers(1, 20))
    def wait(self, which: int | None) -> None:
        if self.core.ready(which):
            return
        woken: list[int] = []
        waiter = Waiter(which, lambda: woken.append(1))
        self.core.wait(waiter)
        self.waiters.append((waiter, woken))

    @rule(data=st.data())
    @precondition(lambda self: self.waiters)
    def give_up_waiting(self, data: st.DataObject) -> None:
        waiter, _ = self.waiters.pop(data.draw(st.integers(0, len(self.waiters) - 1)))
        self.core.forget(waiter)

    # --- the backend ---

    @rule()
    def start(self) -> None:
        queued = sorted(
            (-known.asked.request.priority, request_id)
            for request_id, known in self.known.items()
            if not known.started and not known.ended
        )
        starts = self.core.starts()
        assert [each.request_id for each in starts] == [id for _, id in queued[: len(starts)]]
        for each in starts:
            self.known[each.request_id].started = True
        assert set(self.core.cancels()) == self.cancelled
        self.cancelled.clear()

    def running(self, data: st.DataObject) -> tuple[int, Known, int] | None:
        found = [
            (request_id, known, sequence)
            for request_id, known in self.known.items()
            if known.started and not known.failed
            for sequence in range(known.asked.sequences)
            if sequence not in known.finished
        ]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(data=st.data(), count=st.integers(1, 3))
    def bring(self, data: st.DataObject, count: int) -> None:
        if (chosen := self.running(data)) is None:
            return
        request_id, known, sequence = chosen
        count = min(count, known.asked.request.max_tokens - len(known.brought[sequence]))
        if count:
            tokens = list(range(self.token, self.token + count))
            self.token += count
            self.core.tokens(request_id, sequence, tokens, [])
            known.brought[sequence] += tokens

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if chosen := self.running(data):
            request_id, known, sequence = chosen
            self.core.finish(request_id, sequence, LENGTH)
            known.finished[sequence] = FinishReason.LENGTH

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        if chosen := self.running(data):
            request_id, known, _ = chosen
            self.core.fail(request_id, WorkerError("it broke"))
            known.failed = True

    @rule(which=st.integers(1, 50))
    def say_more_of_what_has_ended(self, which: int) -> None:
        if (known := self.known.get(which)) is None or known.ended:
            self.core.tokens(which, 0, [1], [])
            self.core.finish(which, 0, LENGTH)
            self.core.fail(which, WorkerError("too late"))

    @rule(seconds=st.sampled_from([1.0, 5.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.core.expire(self.now)
        for request_id, known in self.known.items():
            if not known.ended and known.deadline <= self.now:
                known.end(FinishReason.TIMED_OUT)
                if known.started:
                    self.cancelled.add(request_id)

    # --- what holds at any time ---

    @invariant()
    def what_is_unread_and_may_come_is_bounded(self) -> None:
        held = sequences = 0
        for known in self.known.values():
            if known.started and not known.finals:
                read = 0
                if known.asked.request.streaming:
                    read = sum(map(len, known.read.values()))
                else:
                    read = sum(len(known.brought[each]) for each in known.reasons)
                if not known.failed:
                    held += known.arrived - read
                if not known.ended:
                    held += known.asked.tokens - known.arrived
                    sequences += known.asked.sequences
        assert held <= MOST_UNREAD
        assert sequences <= MOST_SEQUENCES

    @invariant()
    def nobody_sleeps_over_a_response(self) -> None:
        woken_any = any(woken for waiter, woken in self.waiters if waiter.request_id is None)
        for waiter, woken in self.waiters:
            assert len(woken) <= 1
            if not woken and self.core.ready(waiter.request_id):
                assert waiter.request_id is None
                assert woken_any

    @invariant()
    def the_next_deadline_is_that_of_what_is_open(self) -> None:
        deadlines = [known.deadline for known in self.known.values() if not known.ended]
        assert self.core.next_deadline() == (min(deadlines) if deadlines else None)

    def teardown(self) -> None:
        """In the end all has ended once, and nothing is held any longer."""
        self.now += 1000
        self.core.expire(self.now)
        for known in self.known.values():
            known.end(FinishReason.TIMED_OUT)
        for response in self.core.read(None):
            self.take(response)
        assert {known.finals for known in self.known.values()} <= {1}
        largest = asked(n=MOST_SEQUENCES, max_tokens=MOST_UNREAD // MOST_SEQUENCES)
        self.core.enqueue([largest], self.now)
        assert len(self.core.starts()) == 1


TestProgram = Program.TestCase
TestProgram.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)


# --- what programs see ----------------------------------------------------------------------------


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


def test_an_end_that_comes_after_its_tokens_were_read_is_a_response_without_tokens() -> None:
    executor = core()
    request_id = started(executor, streaming=True)
    executor.tokens(request_id, 0, [1], [])
    assert len(executor.read(request_id)) == 1
    executor.finish(request_id, 0, LENGTH)
    (last,) = executor.read(request_id)
    assert last.result.output_token_ids == [[]]
    assert last.result.is_final
    assert last.result.finish_reasons == [FinishReason.LENGTH]


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


def test_the_prompt_is_left_out_where_that_is_asked_for() -> None:
    executor = core()
    request_id = started(executor, output_config=OutputConfig(exclude_input_from_output=True))
    executor.tokens(request_id, 0, [1], [])
    executor.finish(request_id, 0, LENGTH)
    assert executor.read(request_id)[0].result.output_token_ids == [[1]]


def test_all_tokens_so_far_are_in_each_response_where_that_is_asked_for() -> None:
    executor = core()
    request_id = started(executor, streaming=True, return_all_generated_tokens=True)
    executor.tokens(request_id, 0, [1, 2], [])
    executor.tokens(request_id, 0, [3], [])
    outputs = [response.result.output_token_ids for response in executor.read(None)]
    assert outputs == [[[1]], [[1, 2]], [[1, 2, 3]]]
    executor.finish(request_id, 0, LENGTH)
    assert executor.read(None)[0].result.output_token_ids == [[1, 2, 3]]


def test_log_probabilities_come_with_their_tokens_and_add_up() -> None:
    executor = core()
    wanted = OutputConfig(return_log_probs=True)
    request_id = started(executor, streaming=True, output_config=wanted)
    executor.tokens(request_id, 0, [1, 2], [-1.0, -0.5])
    results = [response.result for response in executor.read(request_id)]
    assert [result.log_probs for result in results] == [[[-1.0]], [[-0.5]]]
    assert [result.cum_log_probs for result in results] == [[-1.0], [-1.5]]


def test_the_final_response_comes_after_those_of_all_sequences() -> None:
    executor = core()
    request_id = started(executor, n=2, streaming=True)
    executor.tokens(request_id, 1, [1], [])
    executor.tokens(request_id, 0, [2], [])
    executor.finish(request_id, 0, LENGTH)
    executor.finish(request_id, 1, LENGTH)
    results = [response.result for response in executor.read(request_id)]
    assert [(each.sequence_index, each.is_final) for each in results] == [(0, False), (1, True)]
    assert all(each.is_sequence_final for each in results)


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
    [({"n": MOST_SEQUENCES + 1}, "max_open_sequences"), ({"max_tokens": 25}, "max_unread_tokens")],
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
    executor.stop(WorkerError("the backend is gone"))
    assert executor.read(request_id)[0].error_code == "worker_error"
    with pytest.raises(ShutDownError, match="failed"):
        executor.enqueue([asked()], 0.0)


def test_one_who_was_woken_and_leaves_without_reading_wakes_another() -> None:
    executor = core()
    request_id = started(executor, streaming=True)
    woken: list[str] = []
    first = Waiter(None, lambda: woken.append("first"))
    executor.wait(first)
    executor.wait(Waiter(None, lambda: woken.append("second")))
    executor.tokens(request_id, 0, [1], [])
    assert woken == ["first"]
    executor.forget(first)
    assert woken == ["first", "second"]


def test_a_ranking_does_not_keep_what_was_taken_out() -> None:
    ranking = Ranking()
    ranking.add(0, -1.0)
    for id in range(1, 10_000):
        ranking.add(id, float(id))
        ranking.discard(id)
    assert ranking.first() == (0, -1.0)
    assert len(ranking._heap) < 200
