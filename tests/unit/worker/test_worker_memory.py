"""What a worker holds: tasks, and output that waits, under one budget, and whose sequence ends
where there is no room.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from worker_harness import Bench, delta

from tandem.engine.base import Ending
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker.core.outgoing import FRAME_BYTES, MAX_ROW_BYTES

FAILED = worker_pb2.LegClosed.OUTCOME_FAILED
FINISHED = worker_pb2.LegClosed.OUTCOME_FINISHED
PROMPT = {"prompt_token_ids": [10] * 50}
KEPT = 5


def _kept(bench: Bench, number: int, size: int) -> worker_pb2.KeptTask:
    """A task with a prompt of so many tokens."""
    task = bench.command(1, task={"prompt_token_ids": [10] * size}).task
    return worker_pb2.KeptTask(number=number, task=task)


def _tell(bench: Bench, **command: Any) -> None:
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(**command))


def _legs(bench: Bench, kept: int, *numbers: int) -> list[worker_pb2.StartLeg]:
    commands = [bench.command(leg) for leg in numbers]
    for command in commands:
        command.task, command.kept_task = b"", kept
    return commands


@pytest.mark.promise("S6-187")
def test_a_leg_holds_its_task_until_it_is_closed(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    request = bench.start(1, task=PROMPT)
    size = len(bench.command(1, task=PROMPT).task) + 2 * 4 * 50
    assert bench.core.budget.held == size
    bench.step(delta(request, [20], Ending.LENGTH))
    assert bench.said.closed(1).outcome == FINISHED
    assert bench.core.budget.held == 0


@pytest.mark.promise("S6-187")
def test_a_bias_is_held_as_it_came_and_once_for_each_leg(tokenizer: Tokenizer) -> None:
    bias = common_pb2.EmbeddingBias(
        token_ids=array("I", range(1000)).tobytes(), values=b"\0" * 4000
    )
    size, prompt = bias.ByteSize(), 2 * 4 * 3
    assert size > 8_000
    bench = Bench(tokenizer, hook=False)
    bench.start(9, task={"embedding_bias": bias})
    alone = len(bench.command(9, task={"embedding_bias": bias}).task) + prompt + 2 * size
    assert bench.core.budget.held == alone
    task = bench.command(1, task={"embedding_bias": bias}).task
    _tell(bench, keep=[worker_pb2.KeptTask(number=KEPT, task=task)])
    _tell(bench, start=_legs(bench, KEPT, 1, 2, 3))
    assert bench.core.budget.held == alone + len(task) + prompt + 4 * size


@pytest.mark.promise("S6-187")
def test_a_leg_whose_task_finds_no_room_is_refused_and_may_run_elsewhere(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, hook=False, max_held_bytes=1_000)
    first = bench.start(1, task=PROMPT)
    assert bench.start(2, task=PROMPT) == 0
    closed = bench.take().closed(2)
    assert (closed.outcome, closed.error.code, closed.retryable) == (FAILED, "queue_full", True)
    bench.step(delta(first, [20], Ending.LENGTH))
    assert bench.core.budget.held == 0
    assert bench.start(3, task=PROMPT)


@pytest.mark.promise("S6-187")
def test_a_kept_task_is_held_once_for_all_its_legs_until_it_is_forgotten(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, hook=False)
    kept = _kept(bench, KEPT, 50)
    _tell(bench, keep=[kept])
    assert bench.core.budget.held == len(kept.task)
    _tell(bench, start=_legs(bench, KEPT, 1, 2, 3))
    assert bench.core.budget.held == len(kept.task) + 2 * 4 * 50
    assert len(bench.shell) == 3
    _tell(bench, keep=[kept])  # said again
    assert bench.core.budget.held == len(kept.task)
    _tell(bench, forget=[KEPT, 99])
    assert bench.core.budget.held == 0


@pytest.mark.promise("S6-187")
def test_a_kept_task_that_finds_no_room_is_not_kept_and_its_legs_may_run_elsewhere(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, hook=False, max_held_bytes=1200)
    _tell(bench, keep=[_kept(bench, 1, 200), _kept(bench, 2, 200)])
    held = bench.core.budget.held
    assert len(_kept(bench, 1, 200).task) == held
    _tell(bench, start=_legs(bench, 2, 1))
    assert bench.take().closed(1).error.code == "queue_full"
    _tell(bench, start=_legs(bench, 1, 2))  # kept, and there is no room to read it
    assert bench.take().closed(2).error.code == "queue_full"
    assert bench.core.budget.held == held
    _tell(bench, forget=[1, 2])
    assert bench.core.budget.held == 0


@pytest.mark.promise("S6-187")
def test_with_its_stream_all_that_a_router_had_is_given_back(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    other = bench.connect()
    _tell(bench, keep=[_kept(bench, KEPT, 50)], start=_legs(bench, KEPT, 1))
    request = bench.start(2, task=PROMPT)
    held = bench.start(3, task=PROMPT, hold=True)
    for token in range(20, 40):
        for each in (request, held):
            bench.shell.on_step(bench.engine.note([delta(each, [token] * 5000)]))
    assert bench.core.outgoing(bench.link.number).parcels
    bench.shell.disconnect(bench.link)
    bench.link = other
    bench.settle()
    assert len(bench.shell) == 0
    assert bench.core.budget.held == 0


def _grow(bench: Bench, request: int, rows: int) -> None:
    """Rows of about 14,000 bytes, as they count, that nobody takes."""
    for _ in range(rows):
        bench.shell.on_step(bench.engine.note([delta(request, [20] * 3_500)]))


@pytest.mark.promise("S6-189")
def test_of_held_output_that_finds_no_room_the_largest_sequence_ends_alone(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, hook=False, max_held_bytes=1_500_000)
    task = {"want_text": False, "want_token_ids": True}
    small, large = (bench.start(leg, hold=True, task=task) for leg in (1, 2))
    _grow(bench, small, 25)
    _grow(bench, large, 60)
    assert bench.core.budget.held > 1_100_000
    _grow(bench, small, 40)
    bench.settle()
    closed = bench.said.closed(2)
    assert (closed.outcome, closed.error.code) == (FAILED, "worker_error")
    assert bench.leg(small) is not None
    assert bench.core.budget.held < 1_500_000
    bench.release(1)
    bench.shell.on_step(bench.engine.note([delta(small, [21], Ending.LENGTH)]))
    while bench.core.outgoing(bench.link.number).waits:
        bench.take()
    assert len(bench.said.token_ids(101)) == 65 * 3_500 + 1
    assert bench.said.closed(1).outcome == FINISHED
    assert bench.core.budget.held == 0


@pytest.mark.promise("S6-187")
def test_released_output_is_given_back_as_it_leaves(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    task = {"want_text": False, "want_token_ids": True}
    request = bench.start(1, hold=True, task=task)
    _grow(bench, request, 60)
    bench.release(1)
    before = bench.core.budget.held
    assert before > 60 * 14_000
    bench.take()
    after = bench.core.budget.held
    assert FRAME_BYTES <= before - after <= FRAME_BYTES + 2 * MAX_ROW_BYTES


@pytest.mark.promise("S6-187")
def test_a_backlog_is_given_back_when_it_leaves(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    request = bench.start(1, task={"want_text": False, "want_token_ids": True})
    tasks = bench.core.budget.held
    for _ in range(2):
        _grow(bench, request, 25)
        assert bench.core.budget.held - tasks > FRAME_BYTES
        bench.take()
        assert bench.core.budget.held == tasks


@pytest.mark.promise("S6-189")
def test_a_sequence_that_is_over_and_still_waits_ends_with_an_error_where_there_is_no_room(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, hook=False, max_held_bytes=1_500_000)
    task = {"want_text": False, "want_token_ids": True}
    over, other = (bench.start(leg, hold=True, task=task) for leg in (1, 2))
    _grow(bench, over, 60)
    bench.release(1)
    bench.shell.on_step(bench.engine.note([delta(over, [21], Ending.LENGTH)]))
    assert bench.leg(over) is None, "the engine let go of it"
    _grow(bench, other, 50)
    while bench.core.outgoing(bench.link.number).waits:
        bench.take()
    assert bench.said.finishes(101) == []
    assert bench.said.closed(1).error.code == "worker_error"
    assert bench.leg(other) is not None


@pytest.mark.promise("S6-189")
def test_a_router_that_reads_nothing_is_given_up_where_what_waits_for_it_finds_no_room(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, hook=False, max_held_bytes=1_000_000)
    other = bench.connect()
    task = {"want_text": False, "want_token_ids": True}
    request = bench.start(1, task=task)
    here = bench.start(1, link=other, task=task)
    for _ in range(100):
        bench.shell.on_step(bench.engine.note([delta(request, [20] * 3_000)]))
        bench.shell.on_step(bench.engine.note([delta(here, [20] * 3_000)]))
        other.take()
        assert bench.core.budget.held <= 1_000_000
    assert bench.link.broken.is_set()
    assert not other.broken.is_set()
    bench.shell.disconnect(bench.link)
    assert bench.core.budget.held < 10_000
