"""What a program is made of: values that travel and compare, and what is refused by name."""

from __future__ import annotations

import importlib.util
import pickle
import re
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from one_case import one_case

import tandem_executor
from tandem.errors import ConfigError, UnsupportedError
from tandem_executor import (
    BatchingType,
    ContextPhaseParams,
    DisServingRequestStats,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingParams,
    GuideType,
    InflightBatchingStats,
    IterationStats,
    KvCacheMetrics,
    KvCacheStats,
    LogitsPostProcessorConfig,
    NoResultError,
    OutputConfig,
    Request,
    RequestPerfMetrics,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
    RequestType,
    Response,
    Result,
    SamplingConfig,
    TimingMetrics,
)
from tandem_executor.left_out import FALSE, FIELDS, METHODS, NAMES, UNUSED
from tandem_executor.threaded import Executor

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "executor" / "moving-from-tensorrt-llm.md"
RESULT = Result(is_final=True, output_token_ids=[[1]], finish_reasons=[FinishReason.LENGTH])
PARAMS = ContextPhaseParams([7], 5, b"state")
MADE: dict[str, Any] = {
    "Request": {"input_token_ids": [1], "max_tokens": 1},
    "ContextPhaseParams": {"first_gen_tokens": [1], "req_id": 1},
    "LoraConfig": {"task_id": 1},
}
VALUES = (
    Request([1, 2], max_tokens=3, stop_words=[[4]], client_id=5),
    Request([1], max_tokens=3, context_phase_params=PARAMS),
    PARAMS,
    SamplingConfig(top_k=4, seed=1),
    OutputConfig(return_log_probs=True),
    GuidedDecodingParams(GuideType.REGEX, "a*"),
    ExecutorConfig(1, max_queue_size=7, tenant="batch"),
    RESULT,
    Response(3, RESULT, 4),
    Response(3, Result(request_perf_metrics=RequestPerfMetrics()), 4),
    KvCacheStats(max_num_blocks=4),
    InflightBatchingStats(num_gen_requests=2),
    IterationStats(iter=3, kv_cache_stats=KvCacheStats(used_num_blocks=1)),
    DisServingRequestStats(kv_cache_size=7),
    RequestStatsPerIteration(iter=7, request_stats=[RequestStats(id=5)]),
    RequestPerfMetrics(timing_metrics=TimingMetrics(arrival_time=timedelta(seconds=3))),
    KvCacheMetrics(num_missed_blocks=1),
    LogitsPostProcessorConfig({"mine": print}, None, False),
    RequestStage.QUEUED,
    Response(3, "it broke", error_code="worker_error"),
    FinishReason.TIMED_OUT,
    RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION,
    BatchingType.INFLIGHT,
)


@one_case("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_that_was_pickled_is_the_same(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


def test_values_compare_by_what_they_hold() -> None:
    assert SamplingConfig(top_k=4) == SamplingConfig(top_k=4) != SamplingConfig(top_k=5)
    assert Request([1], max_tokens=2) != Request([1], max_tokens=3)
    assert Response(3, RESULT) != Response(4, RESULT)


@pytest.mark.promise("S2-070")
def test_a_response_has_a_result_or_an_error_and_raises_for_the_other() -> None:
    good, bad = Response(3, RESULT), Response(4, "it broke", error_code="worker_error")
    assert (good.has_error(), bad.has_error()) == (False, True)
    assert (good.result, bad.error_msg) == (RESULT, "it broke")
    with pytest.raises(NoResultError, match="request 4 has no result: it broke"):
        _ = bad.result
    with pytest.raises(RuntimeError, match="request 3 has a result"):
        _ = good.error_msg


LEFT_OUT = [(owner, name) for owner, names in FIELDS.items() for name in names]


@pytest.mark.promise("S2-091")
@one_case(("owner", "name"), LEFT_OUT)
def test_an_argument_that_is_left_out_is_refused_by_name_and_nothing_is_passed_over(
    owner: str, name: str
) -> None:
    made, given = getattr(tandem_executor, owner), MADE.get(owner, {})
    with pytest.raises(UnsupportedError, match=re.escape(f"{owner}.{name} is left out: ")) as error:
        made(**given, **{name: 2})
    assert error.value.param == name
    assert made(**given, **{name: None}) == made(**given)
    assert name not in {field.name for field in fields(made)}
    value = made(**given)
    with pytest.raises(UnsupportedError, match=re.escape(f"{owner}.{name} is left out: ")):
        setattr(value, name, 2)
    assert getattr(value, name) is (False if name in FALSE else None)


def test_an_argument_that_nobody_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="surprise"):
        SamplingConfig(surprise=1)  # type: ignore[call-arg]


@pytest.mark.promise("S2-091")
@one_case("name", NAMES)
def test_a_name_that_is_left_out_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} is left out: "):
        getattr(tandem_executor, name)
    assert name not in tandem_executor.__all__


@pytest.mark.promise("S2-091")
def test_a_method_that_is_left_out_is_refused_by_name() -> None:
    with Executor("127.0.0.1:1") as executor:
        for name in METHODS:
            with pytest.raises(UnsupportedError, match=f"Executor.{name} is left out"):
                getattr(executor, name)
        with pytest.raises(AttributeError, match="no_such_method"):
            executor.no_such_method()
    with pytest.raises(AttributeError):
        tandem_executor.no_such_name  # noqa: B018


@pytest.mark.promise("S2-076")
def test_static_batching_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="STATIC"):
        ExecutorConfig(batching_type=BatchingType.STATIC)


@pytest.mark.parametrize(
    "setting",
    [
        {"max_queue_size": 0},
        {"max_open_sequences": 0},
        {"max_unread_tokens": 0},
        {"request_timeout_seconds": 0.0},
        {"router_wait_seconds": float("nan")},
        {"request_timeout_seconds": float("inf")},
        {"tenant": "x" * 65},
        {"weight": 0},
        {"tls_cert": "a.crt"},
    ],
    ids=str,
)
def test_a_setting_that_can_never_serve_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ExecutorConfig(**setting)


def test_beams_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="max_beam_width"):
        ExecutorConfig(2)


@pytest.mark.promise("S2-091")
def test_the_page_lists_what_is_left_out_with_its_reason() -> None:
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {(name, why) for names, why in rows for name in re.findall(r"`(\w+)`", names)}
    tables = (*FIELDS.values(), METHODS, NAMES, UNUSED)
    missing = {(name, why) for table in tables for name, why in table.items()} - listed
    assert not missing


def test_the_page_lists_the_public_names() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in PAGE.parent.glob("*.md"))
    assert [name for name in tandem_executor.__all__ if name not in pages] == []


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("executor_example", ROOT / "examples/executor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.promise("S2-092")
def test_the_example_says_what_a_router_that_is_not_there_costs(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, model_path: Path
) -> None:
    impatient = ExecutorConfig(router_wait_seconds=0.05)
    monkeypatch.setattr(example, "Executor", lambda router: Executor(router, impatient))
    with pytest.raises(SystemExit, match="router_lost"):
        example.main("127.0.0.1:1", str(model_path), "Hi")
