"""A task that a router says once: read once, whatever number of legs runs it, and let go when it is
told to.
"""

from __future__ import annotations

import pytest
from worker_harness import Bench

from tandem.message_limits import MAX_KEPT_BYTES
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2

KEPT = 5


def _kept(bench: Bench, number: int = KEPT, **sampling: int) -> worker_pb2.KeptTask:
    return worker_pb2.KeptTask(number=number, task=bench.command(1, **sampling).task)


def _legs(bench: Bench, *numbers: int, task: bytes = b"") -> list[worker_pb2.StartLeg]:
    commands = [bench.command(leg, output_index=leg - 1) for leg in numbers]
    for command in commands:
        command.task, command.kept_task = task, KEPT
    return commands


@pytest.mark.promise("S6-141")
def test_legs_that_run_one_task_share_all_of_it_but_what_is_their_own(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    bench.shell.command(
        bench.link, worker_pb2.WorkerCommand(keep=[_kept(bench, seed=7)], start=_legs(bench, 1, 2))
    )
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=_legs(bench, 3)))
    requests = bench.engine.submitted
    assert len(requests) == 3
    assert len({id(each.token_ids) for each in requests}) == 1
    assert [each.sampling.seed for each in requests] == [7, 8, 9]


def test_what_is_appended_to_a_kept_task_replaces_its_fields_for_that_leg(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, hook=False)
    again = common_pb2.Task(regeneration=common_pb2.Regeneration(count=1, temperature=0.5))
    changed = _legs(bench, 2, task=again.SerializeToString())
    keep = [_kept(bench)]
    bench.shell.command(
        bench.link, worker_pb2.WorkerCommand(keep=keep, start=[*_legs(bench, 1), *changed])
    )
    assert [each.sampling.temperature for each in bench.engine.submitted] == [0.0, 0.5]


@pytest.mark.parametrize("told", ["never", "too large", "forgotten"])
def test_a_leg_whose_task_is_not_kept_is_refused_alone_and_may_be_run_elsewhere(
    tokenizer: Tokenizer, told: str
) -> None:
    bench = Bench(tokenizer, hook=False)
    if told == "too large":
        large = worker_pb2.KeptTask(number=KEPT, task=b"x" * (MAX_KEPT_BYTES + 1))
        bench.shell.command(bench.link, worker_pb2.WorkerCommand(keep=[large]))
    elif told == "forgotten":
        command = worker_pb2.WorkerCommand(keep=[_kept(bench)], forget=[KEPT, 99])
        bench.shell.command(bench.link, command)
    assert bench.start(1)
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=_legs(bench, 2)))
    closed = bench.take().closed(2)
    assert (closed.error.code, closed.retryable) == ("queue_full", True)
    assert len(bench.shell) == 1


def test_a_kept_task_that_cannot_be_read_is_read_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer, hook=False)
    broken = worker_pb2.KeptTask(number=KEPT, task=b"\xff no task")
    reads = []
    real = common_pb2.Task.FromString

    def count(data: bytes) -> common_pb2.Task:
        reads.append(data)
        return real(data)

    monkeypatch.setattr("tandem.worker.intake.common_pb2.Task.FromString", count, raising=False)
    bench.shell.command(
        bench.link, worker_pb2.WorkerCommand(keep=[broken], start=_legs(bench, *range(1, 20)))
    )
    said = bench.take()
    assert {said.closed(leg).error.code for leg in range(1, 20)} == {"invalid_request"}
    assert len(reads) <= 2, "once for the legs, once for the log"


@pytest.mark.promise("S6-167")
def test_what_one_router_says_is_not_another_router_s(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer, hook=False)
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(keep=[_kept(bench)]))
    other = bench.connect()
    bench.shell.command(other, worker_pb2.WorkerCommand(start=_legs(bench, 1)))
    assert len(bench.shell) == 0
