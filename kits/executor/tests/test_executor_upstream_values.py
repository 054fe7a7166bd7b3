"""The shapes of TensorRT-LLM's tests of values: see test_executor_upstream_shapes.py."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import numpy
import pytest
from upstream import differs

import tandem_executor as trtllm

PROMPT = [1, 2, 3, 4]
COPIED = pytest.mark.parametrize("copied", [False, True], ids=["", "pickled"])
LEFT_OUT = differs("it is left out")
KINDS = trtllm.GuidedDecodingParams.GuideType


@LEFT_OUT
def test_a_configuration_of_sampling_has_all_of_upstreams_fields() -> None:
    """test_sampling_config"""
    given: dict[str, Any] = {
        "top_k": 2, "top_p": 1.0, "top_p_min": 1.0, "top_p_reset_ids": 3, "top_p_decay": 1.0,
        "seed": 7, "temperature": 1.0, "min_tokens": 4, "beam_search_diversity_rate": 1.0,
        "repetition_penalty": 1.0, "presence_penalty": 1.0, "frequency_penalty": 1.0,
        "length_penalty": 1.0, "early_stopping": 5, "num_return_sequences": 2,
    }  # fmt: skip
    empty, config = trtllm.SamplingConfig(1), trtllm.SamplingConfig(1, **given)
    assert {name: getattr(config, name) for name in given} == given
    assert {getattr(empty, name) for name in given} == {None}


@LEFT_OUT
@COPIED
def test_a_configuration_of_output_has_all_of_upstreams_fields(copied: bool) -> None:
    """test_output_config, test_output_config_pickle"""
    empty = trtllm.OutputConfig()
    assert (empty.return_log_probs, empty.return_encoder_output) == (False, False)
    more = [trtllm.AdditionalModelOutput("topKLogits", True)]
    config = trtllm.OutputConfig(True, False, True, False, True, False, more)  # type: ignore[misc]
    config = pickle.loads(pickle.dumps(config)) if copied else config
    assert (config.return_generation_logits, config.return_encoder_output) == (True, True)


@LEFT_OUT
def test_an_adapter_may_bring_its_weights() -> None:
    """test_lora_config"""
    assert trtllm.LoraConfig(1).task_id == 1
    assert trtllm.LoraConfig(1).weights is None
    assert trtllm.LoraConfig(2, numpy.ones(2), numpy.ones(2)).weights is not None


@COPIED
def test_a_guide_is_of_a_kind_and_all_but_json_need_one(copied: bool) -> None:
    """test_guided_decoding_params, test_guided_decoding_params_pickle"""
    assert trtllm.GuidedDecodingParams(KINDS.JSON).guide_type == KINDS.JSON
    schema = json.dumps({"type": "object", "properties": {"answer": {"type": "integer"}}})
    guides = {KINDS.JSON_SCHEMA: schema, KINDS.REGEX: r"\d+", KINDS.EBNF_GRAMMAR: "root ::= [0-9]+"}
    for kind, guide in guides.items():
        params = trtllm.GuidedDecodingParams(kind, guide=guide)
        params = pickle.loads(pickle.dumps(params)) if copied else params
        assert (params.guide_type, params.guide) == (kind, guide)
    with pytest.raises(Exception):  # noqa: B017, PT011
        trtllm.GuidedDecodingParams(KINDS.JSON_SCHEMA)


def filled() -> trtllm.Result:
    result = trtllm.Result()
    result.is_final = result.is_sequence_final = True
    result.output_token_ids, result.sequence_index = [[1, 2, 3]], 1
    result.cum_log_probs, result.log_probs = [1.0, 2.0, 3.0], [[1.0, 2.0, 3.0]]
    result.context_logits, result.encoder_output = numpy.ones((3, 100)), numpy.ones((1, 1))
    result.generation_logits = numpy.ones((1, 3, 100))
    result.finish_reasons, result.decoding_iter = [trtllm.FinishReason.LENGTH], 1
    result.request_perf_metrics = trtllm.RequestPerfMetrics()
    result.request_perf_metrics.last_iter = 33
    return result


@LEFT_OUT
def test_a_result_is_filled_in_with_tensors_of_the_model() -> None:
    """test_result"""
    result = filled()
    assert result.request_perf_metrics is not None
    assert result.request_perf_metrics.last_iter == 33
    result.additional_outputs = [trtllm.AdditionalOutput("topKLogits", numpy.ones((1, 4, 100)))]


def test_a_result_is_pickled() -> None:
    """test_result_pickle"""
    result = filled()
    copy = pickle.loads(pickle.dumps(result))
    for name in ("context_logits", "generation_logits", "encoder_output"):
        assert (getattr(copy, name) == getattr(result, name)).all()
    for name in ("is_final", "output_token_ids", "cum_log_probs", "log_probs", "finish_reasons",
                 "sequence_index", "is_sequence_final", "decoding_iter"):  # fmt: skip
        assert getattr(copy, name) == getattr(result, name)
    assert copy.request_perf_metrics.last_iter == 33


def test_a_response_has_an_error_or_a_result() -> None:
    """test_response"""
    response = trtllm.Response(0, "error")
    assert (response.request_id, response.has_error(), response.error_msg) == (0, True, "error")
    result = trtllm.Result(is_final=True, output_token_ids=[[1, 2, 3]])
    response = trtllm.Response(1, result)
    assert not response.has_error()
    assert response.result.output_token_ids == [[1, 2, 3]]


@COPIED
def test_callbacks_are_configured_by_name(copied: bool) -> None:
    """test_logits_post_processor_config, test_logits_post_processor_config_pickle"""
    empty = trtllm.LogitsPostProcessorConfig()
    assert (empty.processor_map, empty.processor_batched, empty.replicate) == (None, None, True)
    given: dict[str, Any] = {
        "processor_map": {"test_pp": None}, "processor_batched": None, "replicate": False,
    }  # fmt: skip
    config = trtllm.LogitsPostProcessorConfig(**given)
    config = pickle.loads(pickle.dumps(config)) if copied else config
    assert {name: getattr(config, name) for name in given} == given


@differs("speculative decoding is left out")
def test_metrics_are_pickled() -> None:
    """test_request_perf_metrics_pickle"""
    metrics = trtllm.RequestPerfMetrics()
    metrics.timing_metrics.arrival_time = timedelta(seconds=42, milliseconds=123)
    metrics.kv_cache_metrics.num_new_allocated_blocks = 1
    metrics.first_iter, metrics.iter, metrics.last_iter = 0, 40, 50
    assert pickle.loads(pickle.dumps(metrics)) == metrics
    metrics.speculative_decoding.acceptance_rate = 0.5  # type: ignore[attr-defined]


def test_statistics_of_an_iteration_become_json() -> None:
    """test_iteration_stats"""
    stats = trtllm.IterationStats()
    given: dict[str, tuple[str, Any]] = {
        "timestamp": ("timestamp", "01:23:56"), "iter": ("iter", 1),
        "iter_latency_ms": ("iterLatencyMS", 100), "num_active_requests": ("numActiveRequests", 2),
        "num_queued_requests": ("numQueuedRequests", 10), "gpu_mem_usage": ("gpuMemUsage", 1024),
        "max_num_active_requests": ("maxNumActiveRequests", 3),
        "cpu_mem_usage": ("cpuMemUsage", 2048), "pinned_mem_usage": ("pinnedMemUsage", 4096),
    }  # fmt: skip
    for name, (_, value) in given.items():
        setattr(stats, name, value)
    found = json.loads(stats.to_json_str())
    assert {key: found[key] for key, _ in given.values()} == dict(given.values())
    assert found["numCompletedRequests"] == stats.num_completed_requests
    latency = stats.new_active_requests_queue_latency_ms
    assert found["newActiveRequestsQueueLatencyMS"] == latency
    for part in ("kvCacheStats", "staticBatchingStats", "inflightBatchingStats"):
        assert found[part] is None


def test_statistics_of_a_request_become_json() -> None:
    """test_request_stats"""
    stats = trtllm.RequestStats()
    stats.id, stats.stage = 1, trtllm.RequestStage.CONTEXT_IN_PROGRESS
    stats.context_prefill_position, stats.num_generated_tokens = 2, 3
    stats.avg_num_decoded_tokens_per_iter, stats.scheduled, stats.paused = 2.5, True, False
    assert json.loads(stats.to_json_str()).items() >= {
        "id": 1, "stage": "CONTEXT_IN_PROGRESS", "contextPrefillPosition": 2,
        "numGeneratedTokens": 3, "avgNumDecodedTokensPerIter": 2.5, "scheduled": True,
        "paused": False, "disServingStats": None,
    }.items()  # fmt: skip


def test_statistics_of_an_iterations_requests_become_json() -> None:
    """test_request_stats_per_iteration"""
    stats, request = trtllm.RequestStatsPerIteration(), trtllm.RequestStats()
    stats.iter, request.id = 1, 1
    stats.request_stats = [request]
    found = json.loads(stats.to_json_str())
    assert (found["iter"], found["requestStats"][0]["id"]) == (1, 1)


def test_a_request_may_be_told_to_return_all_tokens() -> None:
    """test_return_full_tokens"""
    request = trtllm.Request(PROMPT, max_tokens=5)
    for value in (True, False):
        request.return_all_generated_tokens = value
        assert request.return_all_generated_tokens is value


def test_a_part_of_a_configuration_is_changed_in_its_place() -> None:
    """test_getters_return_references"""
    config = trtllm.ExecutorConfig()
    config.kv_cache_config.max_tokens = 42
    assert config.kv_cache_config.max_tokens == 42
    assert trtllm.ExecutorConfig().kv_cache_config == trtllm.KvCacheConfig()
    with pytest.warns(UserWarning, match="kv_cache_config changes nothing here"):
        trtllm.Executor("127.0.0.1:1", config).shutdown()


def test_a_request_keeps_its_time() -> None:
    """test_allotted_time_ms"""
    request = trtllm.Request(PROMPT, max_tokens=5)
    request.allotted_time_ms = timedelta(milliseconds=2)
    assert request.allotted_time_ms == timedelta(milliseconds=2)


def test_the_module_has_the_version_of_its_package() -> None:
    """test_executor_version"""
    assert trtllm.__version__ == version("tandem-serving")


def test_a_request_is_pickled() -> None:
    """test_request_pickle"""
    sampling = trtllm.SamplingConfig(beam_width=1, top_k=10, top_p=0.1, num_return_sequences=3)
    request = trtllm.Request(PROMPT, max_tokens=5, client_id=123, sampling_config=sampling)
    copy = pickle.loads(pickle.dumps(request))
    assert copy.sampling_config == sampling
    for name in ("request_type", "input_token_ids", "max_tokens", "output_config",
                 "guided_decoding_params", "kv_cache_retention_config"):  # fmt: skip
        assert getattr(copy, name) == getattr(request, name)


# --- what workers are set to here -----------------------------------------------------------------


@COPIED
@pytest.mark.parametrize(
    ("name", "given"),
    [
        (
            "DynamicBatchConfig",
            {
                "enable_batch_size_tuning": True,
                "enable_max_num_tokens_tuning": True,
                "dynamic_batch_moving_average_window": 128,
            },
        ),
        (
            "SchedulerConfig",
            {
                "capacity_scheduler_policy": trtllm.CapacitySchedulerPolicy.MAX_UTILIZATION,
                "context_chunking_policy": trtllm.ContextChunkingPolicy.FIRST_COME_FIRST_SERVED,
                "dynamic_batch_config": trtllm.DynamicBatchConfig(True, True, 128),
            },
        ),
        (
            "ParallelConfig",
            {
                "communication_type": trtllm.CommunicationType.MPI,
                "communication_mode": trtllm.CommunicationMode.ORCHESTRATOR,
                "device_ids": [0, 1],
                "participant_ids": [4, 5],
                "orchestrator_config": trtllm.OrchestratorConfig(True, "worker", None, True),
            },
        ),
        ("PeftCacheConfig", {"num_host_module_layer": 1, "host_cache_size": 1024}),
        ("DebugConfig", {"debug_input_tensors": True, "debug_tensor_names": ["test"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_of_workers_holds_what_it_is_given(
    name: str, given: dict[str, Any], copied: bool
) -> None:
    """test_dynamic_batch_config, test_scheduler_config, test_parallel_config,
    test_peft_cache_config, and the same of a pickled copy
    """
    kind = getattr(trtllm, name)
    config, by_place = kind(**given), kind(*given.values()) if name == "SchedulerConfig" else None
    config = pickle.loads(pickle.dumps(config)) if copied else config
    assert {each: getattr(config, each) for each in given} == given
    assert by_place in (None, config)


def test_the_cache_has_upstreams_defaults_and_fields() -> None:
    """test_kv_cache_config, test_kv_cache_config_pickle"""
    config = trtllm.KvCacheConfig()
    assert (config.enable_block_reuse, config.onboard_blocks, config.use_uvm) == (True, True, False)
    given = {
        "enable_block_reuse": False, "max_tokens": 1, "max_attention_window": [2],
        "sink_token_length": 3, "free_gpu_memory_fraction": 0.5, "cross_kv_cache_fraction": 0.5,
        "host_cache_size": 4, "onboard_blocks": False, "secondary_offload_min_priority": 50,
        "event_buffer_max_size": 1024, "enable_partial_reuse": False,
        "copy_on_partial_reuse": False, "use_uvm": True,
    }  # fmt: skip
    for name, value in given.items():
        assert hasattr(config, name)
        setattr(config, name, value)
    assert pickle.loads(pickle.dumps(config)) == config == trtllm.KvCacheConfig(**given)
