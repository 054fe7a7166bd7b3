"""A decode worker whose tokens go through two processes, on real SGLang: each is a worker to its
routers, with requests of its own in one engine.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from token_workers import READY_SECONDS, Workers
from worker_pair import (
    END_SECONDS,
    PATIENCE,
    WITHOUT_FORMS,
    Pair,
    Sequence_,
    WorkerProcess,
    connected,
    launched,
    options_flag,
)

from tandem.v1 import common_pb2, worker_pb2

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(600)]
LONG = 2000
TOKENS = "tandem_worker_tokens_total"
OPTIONS = options_flag(WITHOUT_FORMS)


@pytest.fixture(scope="module")
def prefill(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """One for all tests, each of which ends its decode worker."""
    log = tmp_path_factory.mktemp("prefill") / "log"
    with launched("prefill", "sglang", model_path, log, OPTIONS) as worker:
        yield worker


@pytest.fixture
def workers(prefill: WorkerProcess, model_path: Path, tmp_path: Path) -> Iterator[Workers]:
    log = tmp_path / "decode.log"
    flags = (OPTIONS, "--token-processes=2")
    with launched("decode", "sglang", model_path, log, *flags) as first:
        deadline = time.monotonic() + READY_SECONDS
        prefill.wait_serving(deadline)
        yield Workers(prefill, first, deadline)


async def _runs(pair: Pair, **fields: int) -> Sequence_:
    """A sequence that has begun to decode."""
    sequence = await pair.start(**fields)
    await pair.prefill.closed(sequence.number)
    await pair.decode.until(lambda _: len(sequence.text) > 4)
    return sequence


@pytest.mark.promise("S5-450", "S5-451")
async def test_each_process_has_its_own_requests_and_all_end_with_the_first(
    workers: Workers,
) -> None:
    prefill, first = workers.prefill, workers.first
    async with (
        connected([prefill, first]) as one,
        connected([prefill, workers.second()]) as other,
    ):
        descriptions = [
            await pair.stubs[1].Describe(worker_pb2.DescribeWorkerRequest())
            for pair in (one, other)
        ]
        assert [each.name for each in descriptions] == ["decode-sglang", "decode-sglang-2"]
        assert [each.limits.max_sequences for each in descriptions] == [8, 8]
        assert descriptions[0].fingerprint == descriptions[1].fingerprint
        totals = [each.load.kv_tokens_total for each in descriptions]
        assert totals == [65536 // 2, 65536 // 2]

        # At once, so that their rows are in the same steps.
        sequences = [await pair.start(max_tokens=40) for pair in (one, other)]
        for pair, sequence in zip((one, other), sequences, strict=True):
            await pair.finished(sequence)
            (finish,) = sequence.finishes
            assert finish.reason == common_pb2.FINISH_REASON_LENGTH
        assert sequences[0].text == sequences[1].text
        assert first.metric(TOKENS, token_process="1") == 40
        assert first.metric(TOKENS, token_process="2") == 40

        stays, goes = await _runs(one, max_tokens=400), await _runs(other, max_tokens=LONG)
        cancelled = await _runs(other, max_tokens=LONG)
        await other.cancel(cancelled)
        assert (
            await other.decode.closed(cancelled.number)
        ).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED

        workers.second_process().send_signal(signal.SIGKILL)
        with pytest.raises((grpc.aio.AioRpcError, AssertionError)):
            await other.decode.closed(goes.number)
        closed = await one.decode.closed(stays.number)
        assert closed.outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
        assert stays.finishes[0].completion_tokens == 400
        await one.idle()  # what was killed holds no KV either

    deadline = time.monotonic() + READY_SECONDS
    await asyncio.to_thread(first.wait_for, "a token process serves", deadline, 2)
    async with connected([prefill, workers.second(start=2)]) as again:
        sequence = await again.start(max_tokens=40)
        await again.finished(sequence)
        assert sequence.text == sequences[0].text

    second = workers.second_process()
    first.process.kill()
    assert first.process.wait(END_SECONDS) == -signal.SIGKILL
    second.wait(PATIENCE)


async def test_all_processes_drain_before_the_engine_ends(workers: Workers) -> None:
    async with (
        connected([workers.prefill, workers.first]) as one,
        connected([workers.prefill, workers.second()]) as other,
    ):
        running = [await _runs(pair, max_tokens=300) for pair in (one, other)]
        second = workers.second_process()
        workers.first.process.send_signal(signal.SIGTERM)
        for pair, sequence in zip((one, other), running, strict=True):
            closed = await pair.decode.closed(sequence.number)
            assert closed.outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
            assert sequence.finishes[0].completion_tokens == 300
    assert await asyncio.to_thread(workers.first.process.wait, END_SECONDS) == 0
    assert not second.is_running()


@pytest.mark.promise("S5-451")
async def test_when_the_engine_dies_each_process_says_so(workers: Workers) -> None:
    async with (
        connected([workers.prefill, workers.first]) as one,
        connected([workers.prefill, workers.second()]) as other,
    ):
        running = [await _runs(pair, max_tokens=LONG) for pair in (one, other)]
        second = workers.second_process()
        children = psutil.Process(workers.first.process.pid).children()
        (scheduler,) = (each for each in children if "sglang::scheduler" in each.cmdline()[0])
        scheduler.kill()
        for pair, sequence in zip((one, other), running, strict=True):
            closed = await pair.decode.closed(sequence.number)
            assert closed.outcome == worker_pb2.LegClosed.OUTCOME_FAILED
            assert closed.error.code == "engine_error"
    assert await asyncio.to_thread(workers.first.process.wait, END_SECONDS) == 1
    assert not second.is_running()
