"""The executor's core by itself: whatever program and backend do, in whatever order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from core_parts import LENGTH, MOST_QUEUE, MOST_SEQUENCES, asked, core, wake
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tandem.errors import WorkerError
from tandem_executor.core import Enqueued
from tandem_executor.errors import FullError
from tandem_executor.responses import FinishReason, Response
from tandem_executor.waiters import Waiter

MOST_UNREAD = 8
"""Fewer than open sequences may bring: what was not read yet must keep others from starting."""


@dataclass
class Known:
    """What a test knows of a request."""

    asked: Enqueued
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

    @property
    def unread(self) -> int:
        """Tokens that were brought and can still be read; a failure drops those held back."""
        return sum(
            len(tokens) - len(self.read[sequence])
            for sequence, tokens in self.brought.items()
            if self.asked.request.streaming or not self.failed or sequence in self.finished
        )

    def end(self, reason: FinishReason) -> None:
        for sequence in range(self.asked.sequences):
            self.finished.setdefault(sequence, reason)


class Program(RuleBasedStateMachine):
    """A program and a backend that do what they may."""

    def __init__(self) -> None:
        super().__init__()
        self.core = core(max_unread_tokens=MOST_UNREAD)
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
        max_tokens = min(max_tokens, MOST_UNREAD // n)
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
        if len(starts) < len(queued):
            left = self.known[queued[len(starts)][1]].asked
            tokens, sequences = self.held()
            assert tokens + left.tokens > MOST_UNREAD or sequences + left.sequences > MOST_SEQUENCES
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

    @rule(data=st.data(), count=st.integers(1, 6))
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

    def held(self) -> tuple[int, int]:
        """The tokens that started requests have unread or may still bring, and their sequences."""
        tokens = sequences = 0
        for known in self.known.values():
            if known.started and not known.finals:
                tokens += known.unread
                if not known.ended:
                    tokens += known.asked.tokens - known.arrived
                    sequences += known.asked.sequences
        return tokens, sequences

    @invariant()
    def what_is_unread_and_may_come_is_bounded(self) -> None:
        tokens, sequences = self.held()
        assert tokens <= MOST_UNREAD
        assert sequences <= MOST_SEQUENCES

    @rule()
    def after_a_turn_nobody_sleeps_over_a_response(self) -> None:
        wake(self.core)
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
    max_examples=150, stateful_step_count=40, report_multiple_bugs=False
)
