"""What an executor says of its own work: rings that reading drains, and times of each request."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import weakref
from datetime import datetime, timedelta
from typing import Any

import pytest
from both import Start, final, request, three_tokens
from core_parts import LENGTH, asked, core
from fake_router import Reply

from tandem.errors import UnsupportedError
from tandem.v1 import common_pb2
from tandem_executor import (
    DisServingRequestStats,
    InflightBatchingStats,
    IterationStats,
    KvCacheMetrics,
    KvCacheStats,
    OutputConfig,
    RequestPerfMetrics,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
    SamplingConfig,
    TimingMetrics,
)
from tandem_executor.core import ExecutorCore

MEASURED = OutputConfig(return_perf_metrics=True)
BATCH = InflightBatchingStats(num_scheduled_requests=2, num_context_requests=1, num_gen_requests=1)
ITERATION = IterationStats(
    timestamp="11-22-2026 23:59:07.123456",
    iter=7,
    new_active_requests_queue_latency_ms=1.5,
    num_new_active_requests=1,
    num_active_requests=2,
    num_queued_requests=0,
    num_completed_requests=3,
    max_num_active_requests=512,
    kv_cache_stats=KvCacheStats(max_num_blocks=9),
    inflight_batching_stats=BATCH,
)
REQUEST = RequestStats(
    id=5,
    stage=RequestStage.GENERATION_COMPLETE,
    context_prefill_position=12,
    num_generated_tokens=4,
    scheduled=False,
    dis_serving_stats=DisServingRequestStats(kv_cache_transfer_ms=0.5, kv_cache_size=4096),
)


def test_json_has_the_keys_of_upstream_and_nothing_that_was_not_measured() -> None:
    assert json.loads(ITERATION.to_json_str()) == {
        "timestamp": "11-22-2026 23:59:07.123456",
        "iter": 7,
        "newActiveRequestsQueueLatencyMS": 1.5,
        "numNewActiveRequests": 1,
        "numActiveRequests": 2,
        "numQueuedRequests": 0,
        "numCompletedRequests": 3,
        "maxNumActiveRequests": 512,
        "kvCacheStats": {"maxNumBlocks": 9},
        "staticBatchingStats": None,
        "inflightBatchingStats": {
            "numScheduledRequests": 2, "numContextRequests": 1, "numGenRequests": 1,
        },
    }  # fmt: skip
    request = {
        "id": 5,
        "stage": "GENERATION_COMPLETE",
        "contextPrefillPosition": 12,
        "numGeneratedTokens": 4,
        "scheduled": False,
        "disServingStats": {"kvCacheTransferMS": 0.5, "kvCacheSize": 4096},
    }
    assert json.loads(REQUEST.to_json_str()) == request
    many = RequestStatsPerIteration(iter=7, request_stats=[REQUEST])
    assert json.loads(many.to_json_str()) == {"iter": 7, "requestStats": [request]}


# --- the core ------------------------------------------------------------------------------------


def watched(*, iterations: int = 100, requests: int = 100, **bounds: int) -> ExecutorCore:
    return core(
        iter_stats_max_iterations=iterations, request_stats_max_iterations=requests, **bounds
    )


def iterations_of(executor: ExecutorCore) -> list[IterationStats]:
    return [record.stats(0.0) for record in executor.recorder.take_iterations()]


def stages_of(executor: ExecutorCore) -> list[dict[int, tuple[RequestStage, int]]]:
    """Stage and tokens of each request, by its id, in each iteration."""
    return [
        {each.id: (each.stage, each.num_generated_tokens) for each in record.request_stats}
        for record in executor.recorder.take_requests()
    ]


def test_an_iteration_counts_what_waits_what_runs_and_what_has_ended() -> None:
    executor = watched(max_open_sequences=2)
    first, second, third = executor.enqueue([asked(), asked(), asked()], 10.0)
    executor.starts()
    executor.record(13.0, came=False)
    executor.tokens(first, 0, [1], [])
    executor.record(14.0, came=True)
    executor.finish(first, 0, LENGTH)
    executor.starts()
    executor.record(16.0, came=False)
    begun, came, ended = iterations_of(executor)
    assert [each.iter for each in (begun, came, ended)] == [1, 2, 3]
    assert (begun.num_queued_requests, begun.num_active_requests) == (1, 2)
    assert (begun.num_new_active_requests, begun.num_completed_requests) == (2, 0)
    assert begun.new_active_requests_queue_latency_ms == 6000
    assert begun.max_num_active_requests == 2
    assert begun.inflight_batching_stats == InflightBatchingStats(
        num_scheduled_requests=2, num_context_requests=2, num_gen_requests=0
    )
    assert came.inflight_batching_stats == BATCH
    assert (came.num_new_active_requests, came.new_active_requests_queue_latency_ms) == (0, 0)
    assert (ended.num_queued_requests, ended.num_active_requests) == (0, 2)
    assert (ended.num_completed_requests, ended.num_new_active_requests) == (1, 1)
    assert ended.new_active_requests_queue_latency_ms == 6000
    assert {second, third} == {2, 3}


@pytest.mark.promise("S2-077")
def test_reading_drains_and_a_full_ring_drops_the_oldest() -> None:
    executor = watched(iterations=3, requests=2)
    for moment in range(5):
        executor.record(float(moment), came=True)
    assert [each.iter for each in iterations_of(executor)] == [3, 4, 5]
    assert [each.iter for each in executor.recorder.take_requests()] == [4, 5]
    assert iterations_of(executor) == []
    assert executor.recorder.take_requests() == []
    executor.record(6.0, came=True)
    assert [each.iter for each in iterations_of(executor)] == [6]
    assert [each.iter for each in executor.recorder.take_requests()] == [6]


def test_statistics_that_nobody_wants_are_not_kept() -> None:
    executor = watched(iterations=0, requests=0)
    (request_id,) = executor.enqueue([asked()], 0.0)
    executor.starts()
    executor.tokens(request_id, 0, [1], [])
    executor.record(1.0, came=True)
    assert iterations_of(executor) == []
    assert executor.recorder.take_requests() == []


def test_a_request_goes_through_its_stages_and_is_over_once() -> None:
    executor = watched(max_open_sequences=1)
    first, second = executor.enqueue([asked(), asked()], 0.0)
    executor.starts()
    executor.record(1.0, came=False)
    executor.tokens(first, 0, [1, 2], [])
    executor.record(2.0, came=True)
    executor.finish(first, 0, LENGTH)
    executor.cancel(second)
    executor.record(3.0, came=False)
    executor.record(4.0, came=True)
    queued = (RequestStage.QUEUED, 0)
    assert stages_of(executor) == [
        {first: (RequestStage.CONTEXT_IN_PROGRESS, 0), second: queued},
        {first: (RequestStage.GENERATION_IN_PROGRESS, 2)},
        {
            first: (RequestStage.GENERATION_COMPLETE, 2),
            second: (RequestStage.GENERATION_COMPLETE, 0),
        },
        {},
    ]


def test_how_much_of_a_prompt_is_read_is_said_where_that_is_known() -> None:
    executor = watched(max_open_sequences=1)
    first, second = executor.enqueue([asked(), asked()], 0.0)
    executor.starts()
    executor.record(1.0, came=False)
    executor.tokens(first, 0, [1], [])
    executor.record(2.0, came=True)
    before, after = executor.recorder.take_requests()
    positions = {each.id: each.context_prefill_position for each in before.request_stats}
    assert positions == {first: None, second: 0}
    assert [each.context_prefill_position for each in after.request_stats] == [2]
    assert [each.scheduled for each in after.request_stats] == [True]


def test_metrics_of_a_request_that_never_left_the_queue_say_when_it_arrived() -> None:
    executor = watched()
    (request_id,) = executor.enqueue([asked(output_config=MEASURED)], 12.5)
    executor.cancel(request_id)
    (response,) = executor.read(request_id)
    assert response.result.request_perf_metrics == RequestPerfMetrics(
        timing_metrics=TimingMetrics(arrival_time=timedelta(seconds=12.5))
    )


def test_each_sequence_is_measured_as_it_ends_and_only_where_that_was_asked_for() -> None:
    executor = watched()
    measured: list[int] = []

    def measure(sequence: int, metrics: RequestPerfMetrics) -> None:
        measured.append(sequence)
        metrics.timing_metrics.kv_cache_size = 100 + sequence

    wanted, not_wanted = executor.enqueue(
        [asked(n=2, max_tokens=2, output_config=MEASURED), asked(n=2, max_tokens=2)], 0.0
    )
    executor.starts()
    for request_id in (wanted, not_wanted):
        executor.measure(request_id, measure)
        executor.tokens(request_id, 0, [1], [])
        executor.finish(request_id, 1, LENGTH)
        executor.finish(request_id, 0, LENGTH)
    assert measured == [1, 0]
    sizes = {
        each.result.sequence_index: each.result.request_perf_metrics.timing_metrics.kv_cache_size
        for each in executor.read(wanted)
        if each.result.request_perf_metrics is not None
    }
    assert sizes == {0: 100, 1: 101}
    assert {each.result.request_perf_metrics for each in executor.read(not_wanted)} == {None}


def test_the_hand_over_of_a_request_that_has_ended_is_in_its_stats() -> None:
    executor = watched()

    def measure(sequence: int, metrics: RequestPerfMetrics) -> None:
        metrics.kv_cache_metrics = KvCacheMetrics(kv_cache_hit_rate=0.25)
        timing = metrics.timing_metrics
        timing.kv_cache_transfer_start = timedelta(seconds=2)
        timing.kv_cache_transfer_end = timedelta(seconds=2.5)
        timing.kv_cache_size = 4096

    (request_id,) = executor.enqueue([asked(output_config=MEASURED)], 0.0)
    executor.starts()
    executor.measure(request_id, measure)
    executor.finish(request_id, 0, LENGTH)
    executor.record(1.0, came=False)
    ((stats,),) = (each.request_stats for each in executor.recorder.take_requests())
    assert stats.dis_serving_stats == DisServingRequestStats(
        kv_cache_transfer_ms=500, kv_cache_size=4096
    )
    assert stats.kv_cache_hit_rate_per_request == 0.25


def test_what_a_request_was_measured_by_is_let_go_at_its_end() -> None:
    executor = watched()

    class Measuring:
        def __call__(self, sequence: int, metrics: RequestPerfMetrics) -> None:
            """Knows nothing."""

    finished, failed = executor.enqueue([asked(output_config=MEASURED)] * 2, 0.0)
    executor.starts()
    gone = []
    for request_id in (finished, failed):
        measuring = Measuring()
        executor.measure(request_id, measuring)
        gone.append(weakref.ref(measuring))
    del measuring
    executor.finish(finished, 0, LENGTH)
    executor.fail(failed, UnsupportedError("no"))
    assert [each() for each in gone] == [None, None]


def test_a_request_that_nobody_watches_is_held_by_no_statistics() -> None:
    executor = watched(requests=0)
    (request_id,) = executor.enqueue([asked()], 0.0)
    unread = executor._entries[request_id].unread
    executor.cancel(request_id)
    executor.read(request_id)
    assert gc.get_referrers(unread) == [], "nor before the next iteration"


def test_nothing_is_kept_after_shutdown() -> None:
    executor = watched()
    executor.record(1.0, came=True)
    executor.shut_down()
    assert iterations_of(executor) == []
    assert executor.recorder.take_requests() == []


def test_nothing_is_held_of_requests_that_are_over() -> None:
    executor = watched(iterations=1, requests=1)
    for _ in range(50):
        (request_id,) = executor.enqueue([asked()], 0.0)
        executor.starts()
        executor.finish(request_id, 0, LENGTH)
        executor.read(request_id)
        executor.record(1.0, came=True)
    (last,) = executor.recorder.take_requests()
    assert len(last.request_stats) == 1
    (counted,) = iterations_of(executor)
    assert counted.num_active_requests == 0
    assert counted.inflight_batching_stats.num_context_requests == 0


# --- both executors, in front of a router that answers by script ---------------------------------


async def completions(executor: Any, count: int) -> list[IterationStats]:
    """Iterations until so many requests have ended in them."""
    found: list[IterationStats] = []
    async with asyncio.timeout(20):
        while sum(each.num_completed_requests for each in found) < count:
            found += executor.get_latest_iteration_stats()
            await asyncio.sleep(0.005)
    return found


@pytest.mark.promise("S2-077")
async def test_a_second_reading_gives_what_is_newer(start: Start) -> None:
    _, executor = await start(three_tokens, request_stats_max_iterations=100)
    await final(executor, executor.enqueue_request(request()))
    first = await completions(executor, 1)
    earlier = executor.get_latest_request_stats()
    assert executor.get_latest_iteration_stats() == []
    assert executor.get_latest_request_stats() == []
    await final(executor, executor.enqueue_request(request()))
    second = await completions(executor, 1)
    numbers = [each.iter for each in first + second]
    assert numbers == list(range(1, len(numbers) + 1))
    assert sum(each.num_new_active_requests for each in first + second) == 2
    assert {each.max_num_active_requests for each in first} == {512}
    ids = [{each.id for each in record.request_stats} for record in earlier]
    assert set().union(*ids) == {1}
    newer = executor.get_latest_request_stats()
    assert set().union(*({each.id for each in record.request_stats} for record in newer)) == {2}


async def test_the_time_of_an_iteration_is_that_of_the_clock_on_the_wall(start: Start) -> None:
    _, executor = await start(three_tokens)
    before = datetime.now()  # noqa: DTZ005 - upstream's are local too
    await final(executor, executor.enqueue_request(request()))
    stats = await completions(executor, 1)
    times = [datetime.strptime(each.timestamp, "%m-%d-%Y %H:%M:%S.%f") for each in stats]  # noqa: DTZ007
    assert times == sorted(times)
    assert abs(times[0] - before) < timedelta(seconds=20)
    assert executor.get_latest_request_stats() == [], "it was not set to watch requests"
    assert all(re.fullmatch(r"\d\d-\d\d-\d{4} \d\d:\d\d:\d\d\.\d{6}", s.timestamp) for s in stats)


@pytest.mark.promise("S2-077")
async def test_without_being_read_a_ring_stays_as_long_as_it_was_set(start: Start) -> None:
    _, executor = await start(
        three_tokens, iter_stats_max_iterations=2, request_stats_max_iterations=1
    )
    for _ in range(5):
        await final(executor, executor.enqueue_request(request()))
    await asyncio.sleep(0.05)
    latest = executor.get_latest_iteration_stats()
    assert len(latest) == 2
    assert latest[0].iter > 2
    assert len(executor.get_latest_request_stats()) == 1


def report(phase: common_pb2.Phase.ValueType, **fields: Any) -> common_pb2.PhaseReport:
    return common_pb2.PhaseReport(phase=phase, worker="w", **fields)


async def test_a_request_is_measured_by_its_workers_and_by_the_executors_clock(
    start: Start,
) -> None:
    async def script(reply: Reply) -> None:
        assert reply.task.want_report
        assert reply.submit.want_report
        reply.report(report(common_pb2.PHASE_PREFILL, phase_seconds=0.02))
        reply.token_ids([11])
        await reply.flush()
        await asyncio.sleep(0.05)
        reply.token_ids([12])
        await reply.flush()
        reply.report(
            report(common_pb2.PHASE_DECODE, phase_seconds=0.06, kv_bytes=4096, kv_seconds=0.004)
        )
        reply.finish(length=True, cached_tokens=1)

    _, executor = await start(script)
    await asyncio.sleep(0.1)
    request_id = executor.enqueue_request(request(output_config=MEASURED))
    (response,) = await final(executor, request_id)
    metrics = response.result.request_perf_metrics
    assert metrics is not None
    timing = metrics.timing_metrics
    assert timing.first_scheduled_time is not None
    assert timing.first_token_time is not None
    assert timing.last_token_time is not None
    assert timing.kv_cache_transfer_start is not None
    assert timing.kv_cache_transfer_end is not None
    assert timing.arrival_time <= timing.first_scheduled_time <= timing.first_token_time
    assert timing.last_token_time - timing.first_token_time >= timedelta(seconds=0.04)
    moved = timing.kv_cache_transfer_end - timing.kv_cache_transfer_start
    assert moved <= timedelta(seconds=0.004)
    assert timing.kv_cache_transfer_end <= timing.first_token_time
    assert timing.kv_cache_size == 4096
    assert metrics.kv_cache_metrics == KvCacheMetrics(kv_cache_hit_rate=0.5)


async def test_what_workers_do_not_say_is_absent(start: Start) -> None:
    _, executor = await start(three_tokens)
    request_id = executor.enqueue_request(request(output_config=MEASURED))
    (response,) = await final(executor, request_id)
    metrics = response.result.request_perf_metrics
    assert metrics is not None
    timing = metrics.timing_metrics
    assert timing.first_token_time is not None
    absent = (
        timing.first_scheduled_time, timing.kv_cache_transfer_start, timing.kv_cache_transfer_end,
        timing.kv_cache_size, metrics.kv_cache_metrics.kv_cache_hit_rate,
    )  # fmt: skip
    assert set(absent) == {None}


async def test_each_sequence_has_the_measures_of_its_own_workers(start: Start) -> None:
    async def script(reply: Reply) -> None:
        for output in range(2):
            reply.token_ids([11], output=output)
            reply.report(
                report(common_pb2.PHASE_PREFILL, kv_bytes=100 + output, kv_seconds=0.001),
                output=output,
            )
            reply.report(report(common_pb2.PHASE_DECODE, kv_bytes=7, kv_seconds=1.0), output=output)
            reply.finish(output=output, length=True)

    _, executor = await start(script)
    twice = SamplingConfig(num_return_sequences=2)
    each = request(output_config=MEASURED, sampling_config=twice)
    responses = await final(executor, executor.enqueue_request(each))
    sizes = {
        response.result.sequence_index: (
            response.result.request_perf_metrics.timing_metrics.kv_cache_size
        )
        for response in responses
        if response.result.request_perf_metrics is not None
    }
    assert sizes == {0: 100, 1: 101}, "prefill's figure, where it has one"


@pytest.mark.parametrize("seconds", [1e300, 0.0])
async def test_times_that_cannot_be_leave_the_others_in_order(start: Start, seconds: float) -> None:
    async def script(reply: Reply) -> None:
        reply.token_ids([11])
        reply.report(
            report(common_pb2.PHASE_DECODE, phase_seconds=seconds, kv_bytes=1, kv_seconds=seconds)
        )
        reply.finish(length=True)

    _, executor = await start(script)
    request_id = executor.enqueue_request(request(output_config=MEASURED))
    (response,) = await final(executor, request_id)
    metrics = response.result.request_perf_metrics
    assert metrics is not None
    timing = metrics.timing_metrics
    assert timing.first_scheduled_time is not None
    assert timing.first_token_time is not None
    assert timing.kv_cache_transfer_start is not None
    assert timing.arrival_time <= timing.first_scheduled_time <= timing.first_token_time
    assert timing.arrival_time <= timing.kv_cache_transfer_start <= timing.first_token_time


async def test_metrics_that_a_router_lets_not_pass_are_an_error_response(start: Start) -> None:
    async def refuse(reply: Reply) -> None:
        error = UnsupportedError("this router lets no reports pass", param="tandem.report")
        reply.end(error=error.to_proto())

    _, executor = await start(refuse)
    (response,) = await final(executor, executor.enqueue_request(request(output_config=MEASURED)))
    assert (response.error_code, response.error_msg) == (
        "unsupported_parameter", "this router lets no reports pass",
    )  # fmt: skip


async def test_a_cancelled_request_has_the_times_that_are_known(start: Start) -> None:
    async def begin(reply: Reply) -> None:
        reply.token_ids([11])

    _, executor = await start(begin)
    request_id = executor.enqueue_request(request(output_config=MEASURED, streaming=True))
    await executor.await_responses(request_id, 20)
    executor.cancel_request(request_id)
    (last,) = await final(executor, request_id)
    metrics = last.result.request_perf_metrics
    assert metrics is not None
    assert metrics.timing_metrics.first_token_time is not None
    assert metrics.timing_metrics.first_scheduled_time is None


async def test_reading_and_waiting_make_no_iteration(start: Start) -> None:
    _, executor = await start(three_tokens)
    await final(executor, executor.enqueue_request(request()))
    await completions(executor, 1)
    for _ in range(3):
        await executor.await_responses(1, 0)
        executor.cancel_request(1)
        await asyncio.sleep(0.02)
    assert executor.get_latest_iteration_stats() == []
