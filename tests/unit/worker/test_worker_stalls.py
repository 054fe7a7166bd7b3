"""No command keeps a worker's event loop: what is much of it is done in slices, and what is large
is refused unparsed, or parsed beside the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from worker_harness import LIMITS, Bench

from tandem.errors import ContextLengthError, InvalidRequestError, RequestError
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.wire.fields import fields
from tandem.worker import intake, kept_tasks, slices, task_sizes
from tandem.worker.slices import MOST_NUMBERS, SLICE_BYTES, SLICE_LEGS, SLICE_NUMBERS

KEPT = 5


def _starts(count: int, *, own: int = 0) -> list[worker_pb2.StartLeg]:
    return [worker_pb2.StartLeg(leg=leg, task=b"x" * own) for leg in range(1, count + 1)]


def _cancels(count: int) -> list[worker_pb2.CancelLeg]:
    return [worker_pb2.CancelLeg(leg=leg) for leg in range(1, count + 1)]


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize(
    ("starts", "kept", "own", "numbers"),
    [
        (0, 0, 0, 0),
        (1, 10 * SLICE_BYTES, 0, 1),
        (128, 0, 100, 0),
        (128, SLICE_BYTES // 3, 0, 5000),
        (40, 100, SLICE_BYTES, 0),
        (17, 0, 0, SLICE_NUMBERS + 1),
    ],
)
def test_a_slice_of_a_command_is_bounded_and_nothing_is_lost_or_turned_round(
    starts: int, kept: int, own: int, numbers: int
) -> None:
    command = worker_pb2.WorkerCommand(
        start=_starts(starts, own=own),
        release=range(numbers),
        cancel=_cancels(numbers),
        forget=range(numbers),
    )
    parts = list(slices.slices(command, [kept] * starts))
    joined = worker_pb2.WorkerCommand()
    for part in parts:
        joined.MergeFrom(part)
        assert len(part.start) <= SLICE_LEGS
        assert len(part.start) <= 1 or len(part.start) * (kept + own) <= SLICE_BYTES
        assert max(map(len, (part.release, part.cancel, part.forget))) <= SLICE_NUMBERS
    assert joined == command
    kinds = [part.ListFields()[0][0].name for part in parts if len(parts) > 1]
    order = ["start", "release", "cancel", "forget"]
    assert kinds == sorted(kinds, key=order.index)


@pytest.mark.promise("S6-186")
async def test_many_legs_are_started_some_a_turn(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tokenizer, hook=False)
    loop, turn, going = asyncio.get_running_loop(), 0, True
    begun: Counter[int] = Counter()

    def tick() -> None:
        nonlocal turn
        turn += 1
        if going:
            loop.call_soon(tick)

    submit = bench.engine.submit

    def counted(request: Any) -> None:
        begun[turn] += 1
        submit(request)

    tick()
    monkeypatch.setattr(bench.engine, "submit", counted)
    monkeypatch.setattr(slices, "SLICE_LEGS", 3)
    commands = [bench.command(leg, output_index=leg - 1) for leg in range(1, 9)]
    for command in commands:
        command.task, command.kept_task = b"", KEPT
    keep = worker_pb2.KeptTask(number=KEPT, task=bench.command(1).task)
    await bench.shell.take(
        bench.link, worker_pb2.WorkerCommand(keep=[keep], start=commands, forget=[KEPT])
    )
    going = False
    assert begun.total() == 8
    assert max(begun.values()) == 3


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("size", [10, task_sizes.SMALL_BYTES])
async def test_a_large_task_is_parsed_once_and_beside_the_loop(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, kept: bool, size: int
) -> None:
    bench = Bench(tokenizer, hook=False)
    threads: list[int] = []
    parse = intake.Intake.parse

    def recorded(self: intake.Intake, data: bytes) -> Any:
        threads.append(threading.get_ident())
        return parse(self, data)

    monkeypatch.setattr(intake.Intake, "parse", recorded)
    commands = [bench.command(leg, output_index=leg - 1) for leg in (1, 2)]
    for command in commands:
        command.task += common_pb2.Task(metadata={"k": "v" * size}).SerializeToString()
    keep = [worker_pb2.KeptTask(number=KEPT, task=commands[0].task)] if kept else []
    for command in commands if kept else ():
        command.task, command.kept_task = b"", KEPT
    await bench.shell.take(bench.link, worker_pb2.WorkerCommand(keep=keep, start=commands))
    assert len(bench.engine.submitted) == 2
    assert len(threads) == (1 if kept else 2)
    beside = size == task_sizes.SMALL_BYTES
    assert [each != threading.get_ident() for each in threads] == [beside] * len(threads)


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_large_task_that_cannot_run_is_refused_alone(
    tokenizer: Tokenizer, kept: bool
) -> None:
    bench = Bench(tokenizer, hook=False)
    bad = bench.command(2, temperature=-1.0)
    metadata = {"k": "v" * task_sizes.SMALL_BYTES}
    bad.task += common_pb2.Task(metadata=metadata).SerializeToString()
    keep = [worker_pb2.KeptTask(number=KEPT, task=bad.task)] if kept else []
    if kept:
        bad.task, bad.kept_task = b"", KEPT
    command = worker_pb2.WorkerCommand(keep=keep, start=[bench.command(1), bad])
    await bench.shell.take(bench.link, command)
    assert len(bench.engine.submitted) == 1
    closed = bench.settle().closed(2)
    assert (closed.error.code, closed.error.param) == ("invalid_request", "temperature")


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize("kind", ["release", "cancel", "forget", "start", "keep"])
async def test_a_command_of_more_than_a_router_says_at_once_ends_its_stream(
    tokenizer: Tokenizer, kind: str
) -> None:
    bench = Bench(tokenizer, hook=False)
    items: dict[str, Any] = {
        "release": range(MOST_NUMBERS + 1),
        "forget": range(MOST_NUMBERS + 1),
        "cancel": [worker_pb2.CancelLeg()] * (MOST_NUMBERS + 1),
        "start": [worker_pb2.StartLeg()] * (MOST_NUMBERS + 1),
        "keep": [worker_pb2.KeptTask()] * (MOST_NUMBERS + 1),
    }
    await bench.shell.take(bench.link, worker_pb2.WorkerCommand(**{kind: items[kind]}))
    assert bench.link.broken.is_set()
    assert not bench.engine.submitted


def _task(**given: Any) -> bytes:
    return common_pb2.Task(trace_id="0" * 32, **given).SerializeToString()


def _many(count: int) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(logit_bias=dict.fromkeys(range(count), 1.0))


@pytest.mark.promise("S6-186")
@pytest.mark.parametrize(
    ("task", "error", "param"),
    [
        (_task(metadata={str(number): "" for number in range(5000)}), InvalidRequestError, ""),
        (_task(sampling=_many(20_000)), InvalidRequestError, "sampling"),
        (
            _task(prompt_token_ids=[2**32 - 1] * (LIMITS.context_length + 7000)),
            ContextLengthError,
            "prompt",
        ),
        (_task(prompt_text="é" * 1_000_000), ContextLengthError, "prompt"),
        (
            _task(
                logits=common_pb2.LogitsSpec(
                    processors=[common_pb2.LogitsProcessor(args_json="x" * 2_000_000)]
                )
            ),
            InvalidRequestError,
            "logits_processors",
        ),
        (
            _task(shown_special_tokens=[3] * 70_000),
            InvalidRequestError,
            "shown_special_tokens",
        ),
        (
            _task(embedding_bias={"values": b"\0" * (8 * LIMITS.vocabulary + 70_000)}),
            InvalidRequestError,
            "embedding_bias",
        ),
        (b"\x0a" * 40_000, InvalidRequestError, ""),
        (b"\xff" * 40_000, InvalidRequestError, ""),
    ],
    ids=[
        "metadata",
        "sampling",
        "ids",
        "text",
        "processors",
        "shown",
        "bias",
        "no message",
        "no number",
    ],
)
def test_a_task_that_would_take_long_to_parse_is_refused_unparsed(
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    task: bytes,
    error: type[RequestError],
    param: str,
) -> None:
    bench = Bench(tokenizer, hook=False)

    def parsed(data: bytes) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(intake, "_parse", parsed)
    with pytest.raises(error) as caught:
        bench.shell._intake.parse(task)
    assert caught.value.param == param


@pytest.mark.promise("S6-186")
def test_the_largest_task_that_frontends_send_passes(tokenizer: Tokenizer) -> None:
    sampling = common_pb2.SamplingParams(
        logit_bias=dict.fromkeys(range(1024), 1.5),
        stop=["é" * 256] * 16,
        stop_token_ids=range(128),
        stop_words=[common_pb2.StopWord(token_id=[2000] * 4)] * 256,
    )
    task = _task(
        sampling=sampling,
        metadata={str(number): "é" * 512 for number in range(16)},
        prompt_token_ids=[2000] * LIMITS.context_length,
        logits=common_pb2.LogitsSpec(
            processors=[common_pb2.LogitsProcessor(args_json="x" * 256 * 1024)] * 1
        ),
        embedding_bias={
            "token_ids": b"\0" * 4 * LIMITS.vocabulary,
            "values": b"\0" * 4 * LIMITS.vocabulary,
        },
    )
    specs = intake.DEFAULT_LIMITS
    task_sizes.check(task, LIMITS, most_text=1, specs=specs)


@pytest.mark.promise("S6-186")
def test_the_log_of_a_refusal_reads_the_trace_id_alone() -> None:
    task = _task(metadata={str(number): "" for number in range(5000)})
    assert kept_tasks.trace_id_of(task) == "0" * 32
    assert kept_tasks.trace_id_of(b"\xff") is None
    assert kept_tasks.trace_id_of(b"") is None
    assert kept_tasks.trace_id_of(common_pb2.Task(model="0" * 32).SerializeToString()) is None


def test_fields_are_those_of_the_message() -> None:
    task = common_pb2.Task(model="m", prompt_token_ids=[1, 300], streaming=True)
    task.sampling.temperature = 0.5
    found = [(number, bytes(content)) for number, content in fields(task.SerializeToString())]
    sampling = task.sampling.SerializeToString()
    assert found == [(2, b"m"), (3, b"\x01\0\0\0\x2c\x01\0\0"), (5, sampling), (7, b"")]
    assert [number for number, _ in fields(sampling)] == [2]
