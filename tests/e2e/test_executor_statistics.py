"""What executors say of their work, on either engine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from stacks import Served

from tandem_executor import (
    Executor,
    ExecutorConfig,
    KvCacheStats,
    OutputConfig,
    Request,
    RequestStage,
    Result,
    SamplingConfig,
)

SECONDS = 60.0
PAGE = Path(__file__).resolve().parents[2] / "docs" / "executor" / "statistics.md"


@pytest.fixture(params=["sim", pytest.param("sglang", marks=pytest.mark.sglang)])
def served(request: pytest.FixtureRequest) -> Served:
    """Pairs alone: what KV moved is told too."""
    stack: Served = request.getfixturevalue(request.param)
    return stack


@pytest.fixture
def router(served: Served) -> str:
    return served.stack.components["router"].address


@pytest.fixture
def executor(router: str) -> Iterator[Executor]:
    with Executor(router, ExecutorConfig(request_stats_max_iterations=1000)) as running:
        yield running


def results_of(executor: Executor, prompt: list[int], **fields: Any) -> list[Result]:
    """All results of a request that is measured."""
    output = OutputConfig(return_perf_metrics=True)
    request = Request(prompt, max_tokens=8, output_config=output, **fields)
    request_id = executor.enqueue_request(request)
    found: list[Result] = []
    while not found or not found[-1].is_final:
        new = executor.await_responses(request_id, SECONDS)
        assert new, "it takes too long"
        found += [response.result for response in new]
    return found


def test_each_sequence_says_where_its_time_went(executor: Executor) -> None:
    twice = SamplingConfig(num_return_sequences=2)
    results = results_of(executor, [*range(300, 400)], sampling_config=twice)
    assert [result.is_sequence_final for result in results] == [True, True]
    for result in results:
        assert result.request_perf_metrics is not None
        timing = result.request_perf_metrics.timing_metrics
        assert timing.first_scheduled_time is not None
        assert timing.first_token_time is not None
        assert timing.last_token_time is not None
        assert timing.kv_cache_transfer_start is not None
        assert timing.kv_cache_transfer_end is not None
        assert timing.kv_cache_size is not None
        assert timing.arrival_time <= timing.first_scheduled_time <= timing.first_token_time
        assert timing.first_token_time <= timing.last_token_time
        moved = timing.kv_cache_transfer_end - timing.kv_cache_transfer_start
        assert timedelta() < moved < timedelta(seconds=SECONDS)
        assert timing.kv_cache_size > 100
        kv_cache = result.request_perf_metrics.kv_cache_metrics
        assert kv_cache is not None
        assert kv_cache.kv_cache_hit_rate is not None
        assert 0 <= kv_cache.kv_cache_hit_rate <= 1


def test_a_request_streamed_is_measured_in_its_last_response_alone(executor: Executor) -> None:
    results = results_of(executor, [101, 102, 103], streaming=True)
    measured = [result.request_perf_metrics is not None for result in results]
    assert measured == [False] * (len(results) - 1) + [True]


@pytest.mark.promise("S2-077")
def test_iterations_tell_of_each_request_once_that_it_began_and_that_it_ended(
    executor: Executor,
) -> None:
    for number in range(3):
        results_of(executor, [101, 102, 103 + number])
    iterations = executor.get_latest_iteration_stats()
    assert sum(each.num_new_active_requests for each in iterations) == 3
    assert sum(each.num_completed_requests for each in iterations) >= 2  # the last may follow
    assert [each.iter for each in iterations] == list(range(1, len(iterations) + 1))
    stages: dict[int, list[RequestStage]] = {}
    for record in executor.get_latest_request_stats():
        for stats in record.request_stats:
            stages.setdefault(stats.id, []).append(stats.stage)
            if stats.stage is RequestStage.GENERATION_COMPLETE:
                assert stats.num_generated_tokens == 8
                assert stats.dis_serving_stats is not None
    for found in (stages[1], stages[2]):
        assert found[0] is RequestStage.CONTEXT_IN_PROGRESS
        assert found[-1] is RequestStage.GENERATION_COMPLETE
        assert found.count(RequestStage.GENERATION_COMPLETE) == 1
    assert all(later.iter > iterations[-1].iter for later in executor.get_latest_iteration_stats())


@pytest.mark.promise("S2-077")
def test_iterations_tell_how_full_the_kv_caches_are(executor: Executor) -> None:
    """Routers say it once a second; it may be as old as that, and a second more."""
    prompt = [*range(300, 400)]
    found: list[KvCacheStats] = []
    deadline = time.monotonic() + SECONDS
    while not any(each.max_num_blocks for each in found):
        assert time.monotonic() < deadline, found
        results_of(executor, prompt)
        iterations = executor.get_latest_iteration_stats()
        found = [each.kv_cache_stats for each in iterations if each.kv_cache_stats is not None]
    last = found[-1]
    assert last.max_num_blocks is not None
    assert last.used_num_blocks is not None
    assert last.tokens_per_block is not None
    assert last.cache_hit_rate is not None
    assert last.free_num_blocks == last.max_num_blocks - last.used_num_blocks >= 0
    assert last.tokens_per_block * last.max_num_blocks > len(prompt)
    assert 0 <= last.cache_hit_rate < 1
    assert last.alloc_total_blocks is None, "no engine counts it"


def test_the_program_of_the_page_runs(router: str, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    exec(compile(program.replace("127.0.0.1:7000", router), "statistics", "exec"), {})
    queue, hand_over, *lines = capsys.readouterr().out.splitlines()
    assert queue.startswith("queue 0:00:")
    assert hand_over.startswith("hand-over 0:00:")
    assert lines
    assert all(line.startswith('{"timestamp":') for line in lines)
