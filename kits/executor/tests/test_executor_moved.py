"""What programs do that were written for TensorRT-LLM: they make, change, copy and compare values
in its shapes, and name arguments as it does.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import local
import numpy
import pytest

import tandem_executor as trtllm
from tandem.errors import ConfigError, UnsupportedError
from tandem_executor import left_out, submissions
from tandem_executor.calls import awaited

ARRAY = numpy.array([1, 2, 3], dtype=numpy.int32)


def asked(**fields: Any) -> trtllm.Request:
    """A request as the core is given it. Raises what is wrong with it."""
    request = trtllm.Request(**{"input_token_ids": ARRAY, "max_tokens": 3} | fields)
    found = submissions.asked(request, trtllm.ExecutorConfig())
    if found.fault is not None:
        raise found.fault
    return found.request


# --- making values -------------------------------------------------------------------------------


def test_arguments_are_taken_by_place_as_upstream_has_them() -> None:
    assert trtllm.Request([1, 2], 5) == trtllm.Request([1, 2], max_tokens=5)
    output = trtllm.OutputConfig(True, False, False, True, False, True, None)  # type: ignore[misc]
    assert output == trtllm.OutputConfig(
        return_log_probs=True, exclude_input_from_output=True, return_perf_metrics=True
    )
    params = trtllm.ContextPhaseParams([7], 5, b"state", None)  # type: ignore[call-arg]
    assert params == trtllm.ContextPhaseParams([7], 5, b"state")
    config = trtllm.ExecutorConfig(1, None, None, False, False, 7, 8)  # type: ignore[misc]
    assert (config.iter_stats_max_iterations, config.request_stats_max_iterations) == (7, 8)


def test_an_argument_by_place_never_means_another_one() -> None:
    with pytest.raises(UnsupportedError, match=r"OutputConfig.return_encoder_output is left out"):
        trtllm.OutputConfig(False, False, False, False, True)  # type: ignore[misc]
    with pytest.raises(UnsupportedError, match=r"ExecutorConfig.normalize_log_probs is left out"):
        trtllm.ExecutorConfig(1, None, None, False, True)  # type: ignore[misc]
    with pytest.raises(TypeError, match="Request takes 2 arguments by place"):
        trtllm.Request([1], 2, True)  # type: ignore[misc]
    with pytest.raises(TypeError, match="max_tokens by place and by name"):
        trtllm.Request([1], 2, max_tokens=3)  # type: ignore[misc]


UNUSED: dict[str, Any] = {
    "scheduler_config": trtllm.SchedulerConfig(
        trtllm.CapacitySchedulerPolicy.MAX_UTILIZATION,
        trtllm.ContextChunkingPolicy.EQUAL_PROGRESS,
        trtllm.DynamicBatchConfig(True, True, 128),
    ),
    "kv_cache_config": trtllm.KvCacheConfig(False, 100, free_gpu_memory_fraction=0.5),
    "parallel_config": trtllm.ParallelConfig(
        trtllm.CommunicationType.MPI,
        trtllm.CommunicationMode.LEADER,
        orchestrator_config=trtllm.OrchestratorConfig(False, "worker"),
    ),
    "peft_cache_config": trtllm.PeftCacheConfig(1, 2, 3, host_cache_size=4),
    "extended_runtime_perf_knob_config": trtllm.ExtendedRuntimePerfKnobConfig(cuda_graph_mode=True),
    "debug_config": trtllm.DebugConfig(debug_output_tensors=True),
    "cache_transceiver_config": trtllm.CacheTransceiverConfig(
        trtllm.CacheTransceiverBackendType.NIXL, 8
    ),
    "enable_chunked_context": True,
    "gather_generation_logits": True,
    "use_gpu_direct_storage": True,
    "fail_fast_on_attention_window_too_large": True,
    "enable_trt_overlap": True,
    "max_batch_size": 8,
    "max_num_tokens": 4096,
    "gpu_weights_percent": 0.5,
    "recv_poll_period_ms": 10,
    "max_seq_idle_microseconds": 180_000_000,
}


@pytest.mark.promise("S2-087")
def test_settings_that_workers_own_are_taken_and_an_executor_warns_of_each_by_name(
    model_path: Path,
) -> None:
    assert UNUSED.keys() == left_out.UNUSED.keys()
    config = local.sim(**UNUSED)
    assert {name: getattr(config, name) for name in UNUSED} == UNUSED
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.warns(UserWarning, match="changes nothing here") as warned:
        executor = trtllm.Executor(model_path, config)
    with executor:
        output = trtllm.OutputConfig(exclude_input_from_output=True, return_generation_logits=True)
        result = local.last(executor, output_config=output).result
        assert result.generation_logits.shape == (1, 8, local.VOCABULARY)
    said = [str(each.message) for each in warned]
    assert said == [
        f"ExecutorConfig.{name} changes nothing here: {why}"
        for name, why in left_out.UNUSED.items()
    ]
    assert {each.filename for each in warned} == {__file__}


def test_settings_that_ask_for_nothing_warn_of_nothing() -> None:
    nothing = trtllm.ExecutorConfig(
        kv_cache_config=None, enable_chunked_context=False, gather_generation_logits=False
    )
    unset = trtllm.ExecutorConfig(scheduler_config=trtllm.SchedulerConfig())
    for config in (nothing, unset):
        trtllm.Executor("127.0.0.1:1", config).shutdown()  # warnings are errors here


def test_a_setting_that_no_workers_have_is_refused_in_their_shapes_too() -> None:
    with pytest.raises(TypeError, match="surprise"):
        trtllm.KvCacheConfig(surprise=1)
    assert trtllm.KvCacheConfig().enable_block_reuse is True
    with pytest.raises(UnsupportedError, match="left out"):
        trtllm.DecodingConfig()


@pytest.mark.promise("S2-088")
def test_where_an_engine_s_buffers_are_given_the_error_says_what_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"takes an ExecutorConfig, not str: .*no buffers"):
        trtllm.Executor(b"engine", "{}")  # type: ignore[arg-type]
    for where in (b"engine", b"\0\xff" * 500_000, "x" * 1_000_000, 7):
        with pytest.raises(ConfigError, match="neither a router's address") as error:
            trtllm.Executor(where, local.sim())  # type: ignore[arg-type]
        assert len(str(error.value)) < 400


@pytest.mark.promise("S2-088")
def test_a_path_of_bytes_is_a_path(model_path: Path) -> None:
    with trtllm.Executor(bytes(model_path), local.sim()) as executor:
        assert len(local.answer(executor)) == 8


@pytest.mark.promise("S2-088")
@pytest.mark.parametrize("kind", list(trtllm.GuideType))
def test_a_guide_is_needed_by_every_kind_but_json(kind: trtllm.GuideType) -> None:
    if kind is trtllm.GuideType.JSON:
        assert trtllm.GuidedDecodingParams(kind).guide is None
    else:
        with pytest.raises(RuntimeError, match=f"{kind.name} needs a guide"):
            trtllm.GuidedDecodingParams(kind)


@pytest.mark.promise("S2-088")
def test_what_is_left_out_and_false_there_is_false_here() -> None:
    assert trtllm.OutputConfig().return_encoder_output is False
    assert trtllm.ExecutorConfig().mm_embedding_offloading is False  # type: ignore[attr-defined]
    assert trtllm.ExecutorConfig().gather_generation_logits is False
    assert trtllm.OutputConfig().additional_model_outputs is None


@pytest.mark.promise("S2-082", "S5-621")
def test_an_executor_with_a_pair_of_its_own_runs_both_halves(model_path: Path) -> None:
    kinds = trtllm.RequestType
    with local.running(model_path, disaggregated=True) as executor:
        whole = local.answer(executor)
        first = local.last(executor, type=kinds.REQUEST_TYPE_CONTEXT_ONLY).result
        assert first.context_phase_params.first_gen_tokens == whole[:1]
        params = {
            "type": kinds.REQUEST_TYPE_GENERATION_ONLY,
            "context_phase_params": first.context_phase_params,
        }
        assert local.answer(executor, **params) == whole
        assert local.last(executor, **params).error_code == "voucher_refused"
        with local.running(model_path, disaggregated=True) as other:
            again = local.last(executor, type=kinds.REQUEST_TYPE_CONTEXT_ONLY).result
            params["context_phase_params"] = again.context_phase_params
            assert local.last(other, **params).error_code == "voucher_refused"
    with local.running(model_path) as one_engine:
        refused = local.last(one_engine, type=kinds.REQUEST_TYPE_CONTEXT_ONLY)
        assert refused.error_code == "unsupported_parameter"
        assert "context-only" in refused.error_msg


def test_logits_of_a_response_can_be_let_go() -> None:
    result = trtllm.Result(context_logits=numpy.ones(3), generation_logits=numpy.ones(3))
    response = trtllm.Response(1, result)
    response.clear_context_logits()
    assert result.context_logits is None
    assert result.generation_logits is not None
    response.clear_generation_logits()
    assert result.generation_logits is None
    trtllm.Response(1, "it broke").clear_context_logits()


# --- changing, copying and comparing them --------------------------------------------------------


def test_the_type_of_a_request_has_upstream_s_name_too() -> None:
    request = trtllm.Request([1], 2)
    request.request_type = trtllm.RequestType.REQUEST_TYPE_CONTEXT_ONLY
    assert pickle.loads(pickle.dumps(request)).request_type is request.type
    assert request.type is trtllm.RequestType.REQUEST_TYPE_CONTEXT_ONLY


def test_requests_with_arrays_compare() -> None:
    def made(bias: float) -> trtllm.Request:
        return trtllm.Request(ARRAY, 3, embedding_bias=numpy.full(4, bias))

    assert made(1.0) == made(1.0) != made(2.0)
    assert pickle.loads(pickle.dumps(made(1.0))) == made(1.0)


def test_a_configuration_is_changed_until_an_executor_has_it(model_path: Path) -> None:
    config = local.sim()

    def everything_42(
        req_id: int, logits: Any, ids: list[list[int]], stream: int | None, client: int | None
    ) -> None:
        logits[:] = float("-inf")
        logits[..., 42] = 0

    config.logits_post_processor_config = trtllm.LogitsPostProcessorConfig({"mine": everything_42})
    with trtllm.Executor(model_path, config) as executor:
        config.logits_post_processor_config = None
        assert local.answer(executor, logits_post_processor_name="mine") == [42] * 8


def test_what_is_assigned_to_a_configuration_is_checked_as_what_is_given_to_it() -> None:
    config = trtllm.ExecutorConfig()
    with pytest.raises(UnsupportedError, match=r"ExecutorConfig.decoding_config is left out"):
        config.decoding_config = object()  # type: ignore[attr-defined]
    config.batching_type = trtllm.BatchingType.STATIC
    with pytest.raises(UnsupportedError, match="STATIC"):
        trtllm.Executor("127.0.0.1:1", config)
    other = trtllm.ExecutorConfig()
    other.max_queue_size = 0
    with pytest.raises(ConfigError, match="max_queue_size"):
        trtllm.AsyncExecutor("127.0.0.1:1", other)


# --- what requests hold --------------------------------------------------------------------------


def test_a_negative_end_id_is_none() -> None:
    assert asked(end_id=-1, pad_id=-2).end_id is None
    assert asked(end_id=0).end_id == 0


def test_numbers_of_arrays_are_numbers() -> None:
    request = asked(
        max_tokens=numpy.int64(5),
        client_id=numpy.int64(7),
        end_id=ARRAY[0],
        sampling_config=trtllm.SamplingConfig(num_return_sequences=numpy.int32(2)),  # type: ignore[arg-type]
    )
    assert (request.max_tokens, request.client_id, request.end_id) == (5, 7, 1)
    assert {type(each) for each in (request.max_tokens, request.client_id, request.end_id)} == {int}


# --- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("id", "timeout", "ids", "expected"),
    [
        (None, None, None, (None, float("inf"))),
        (timedelta(milliseconds=20), None, None, (None, 0.02)),
        (3, timedelta(seconds=1), None, (3, 1.0)),
        ([3, 4], 2, None, ([3, 4], 2)),
        (None, 2, [3, 4], ([3, 4], 2)),
    ],
)
def test_await_responses_takes_what_upstream_takes(
    id: Any, timeout: Any, ids: Any, expected: Any
) -> None:
    assert awaited(id, timeout, ids) == expected


def test_arguments_of_calls_have_upstream_s_names(model_path: Path) -> None:
    with local.running(model_path) as executor:
        first, second = executor.enqueue_requests(requests=[local.request(), local.request()])
        (responses,) = executor.await_responses(ids=[first], timeout=timedelta(seconds=30))
        assert responses[0].result.is_final
        assert executor.await_responses(id=second, timeout=30.0)[0].result.is_final
        assert executor.get_num_responses_ready(id=second) == 0
        executor.cancel_request(id=second)
        with pytest.raises(TypeError, match="not both"):
            executor.await_responses(first, ids=[second])  # type: ignore[call-overload]
