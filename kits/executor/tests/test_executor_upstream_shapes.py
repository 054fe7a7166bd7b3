"""The shapes of TensorRT-LLM's own tests of its Executor bindings
(tests/unittest/bindings/test_executor_bindings.py at 008b2b8d), retyped for the sim engine: all but
those of a class that is left out. A docstring names the test that it has the shape of. What does
not hold is expected to fail, with the reason that docs/executor/moving-from-tensorrt-llm.md gives:

    pytest -rx kits/executor/tests/test_executor_upstream_shapes.py \\
        kits/executor/tests/test_executor_upstream_values.py
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import local
import numpy
import pytest
from local import VOCABULARY
from upstream import differs

import tandem_executor as trtllm
from tandem.errors import StartError
from tandem_executor import Executor

PROMPT = [101, 102, 103, 104]
TURN = timedelta(milliseconds=1)
TURNS = 10_000
STREAMING = pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streaming"])


def everything_42(
    req_id: int, logits: Any, ids: list[list[int]], stream_ptr: int | None, client_id: int | None
) -> None:
    assert client_id == 123
    assert isinstance(stream_ptr, int), "torch.cuda.ExternalStream takes nothing else"
    logits[:] = float("-inf")
    logits[..., 42] = 0


def all_42(
    req_ids: Any, logits: Sequence[Any], ids: Any, stream_ptr: Any, client_ids: Sequence[Any]
) -> None:
    for each, client_id in zip(logits, client_ids, strict=True):
        everything_42(0, each, [], stream_ptr, client_id)


@contextmanager
def running(model_path: Path) -> Iterator[Executor]:
    """An executor with all that any of the tests sets."""
    config = local.sim(
        kv_cache_config=trtllm.KvCacheConfig(free_gpu_memory_fraction=0.5),
        gather_generation_logits=True,
    )
    config.logits_post_processor_config = trtllm.LogitsPostProcessorConfig(
        {"my_logits_pp": everything_42}, all_42
    )
    with pytest.warns(UserWarning, match="changes nothing here"):
        made = Executor(model_path, config)
    with made:
        yield made


@pytest.fixture(scope="module")
def executor(model_path: Path) -> Iterator[Executor]:
    """One for all tests that leave no response unread."""
    with running(model_path) as shared:
        yield shared


def results_of(executor: Executor, request_ids: Sequence[int]) -> Iterator[trtllm.Result]:
    """Results of all of them, as they come to who asks for any, a millisecond at a time."""
    still = set(request_ids)
    for _ in range(TURNS):
        for response in executor.await_responses(TURN):
            assert not response.has_error(), response.error_msg
            if response.result.is_final:
                still.remove(response.request_id)
            yield response.result
        if not still:
            return
    raise AssertionError("it takes too long")


def tokens_of(executor: Executor, request: trtllm.Request) -> list[int]:
    request_id = executor.enqueue_request(request)
    tokens: list[int] = []
    for _ in range(TURNS):
        for response in executor.await_responses(request_id, TURN):
            assert not response.has_error(), response.error_msg
            tokens += response.result.output_token_ids[0]
            if response.result.is_final:
                return tokens
    raise AssertionError("it takes too long")


def many(streaming: bool, *, most: int = 20, end_id: int | None = -1) -> list[trtllm.Request]:
    """Prompts and answers of any length; each fifth has two sequences."""
    chance = random.Random(most)
    return [
        trtllm.Request(
            [1] * chance.randint(1, most),
            max_tokens=chance.randint(1, most),
            streaming=streaming,
            sampling_config=trtllm.SamplingConfig(num_return_sequences=2 if i % 5 == 1 else 1),
            end_id=end_id,
        )
        for i in range(20)
    ]


def expected_tokens(request: trtllm.Request) -> int:
    return request.max_tokens + (0 if request.streaming else len(request.input_token_ids))


# --- an executor's life ---------------------------------------------------------------------------


def test_a_folder_and_a_configuration_make_an_executor(executor: Executor) -> None:
    """test_executor_valid_ctor"""
    assert executor.can_enqueue_requests()


@differs("texts of errors are ours")
def test_a_path_that_is_none_is_refused_in_upstreams_words() -> None:
    """test_executor_invalid_ctor"""
    with pytest.raises(StartError) as refused:
        Executor("Bla", trtllm.ExecutorConfig(1))
    assert "File does not exist" in str(refused.value)


def test_after_shutdown_every_call_raises(model_path: Path) -> None:
    """test_shutdown"""
    with local.running(model_path) as executor:
        request_id = executor.enqueue_request(trtllm.Request(PROMPT, max_tokens=5))
        executor.shutdown()
        assert not executor.can_enqueue_requests()
        for call in (
            lambda: executor.enqueue_request(trtllm.Request(PROMPT, max_tokens=5)),
            executor.await_responses,
            executor.get_latest_iteration_stats,
            executor.get_latest_request_stats,
            lambda: executor.get_latest_debug_tensors(),
            lambda: executor.cancel_request(request_id),
            lambda: executor.get_num_responses_ready(request_id),
        ):
            with pytest.raises(Exception):  # noqa: B017, PT011
                call()


def test_a_thread_that_waits_for_anything_is_woken_by_shutdown(model_path: Path) -> None:
    """test_wakeup"""
    with local.running(model_path) as executor:
        came, stop = threading.Event(), threading.Event()

        def read() -> None:
            while not stop.is_set():
                for response in executor.await_responses(timeout=None):
                    assert response.result.output_token_ids
                    came.set()

        thread = threading.Thread(target=read)
        thread.start()
        executor.enqueue_request(trtllm.Request(PROMPT, max_tokens=5, streaming=True))
        assert came.wait(local.SECONDS)
        stop.set()
        executor.shutdown()
        thread.join(local.SECONDS)
        assert not thread.is_alive()


def test_nothing_comes_where_nothing_was_asked(model_path: Path) -> None:
    """test_gpt_executor_timed_out"""
    with local.running(model_path) as executor:
        assert executor.get_num_responses_ready() == 0
        assert executor.await_responses(timedelta(milliseconds=10)) == []


# --- requests -------------------------------------------------------------------------------------


def test_a_bias_on_one_token_gives_that_token(executor: Executor) -> None:
    """test_embedding_bias"""
    bias = numpy.zeros(VOCABULARY, dtype=numpy.float32)
    bias[10] = numpy.finfo(numpy.float32).max
    asked = trtllm.Request(PROMPT, max_tokens=5, embedding_bias=bias)  # type: ignore[arg-type]
    assert tokens_of(executor, asked) == [*PROMPT, *[10] * 5]


@differs("texts of errors are ours")
def test_a_bias_of_a_wrong_length_is_refused_in_upstreams_words(executor: Executor) -> None:
    """test_single_request_invalid_inputs"""
    request = trtllm.Request(PROMPT, max_tokens=5, streaming=True)
    request.embedding_bias = numpy.ones(1)  # type: ignore[assignment]
    (response,) = local.responses_of(executor, executor.enqueue_request(request))
    assert response.has_error()
    assert "embedding bias shape is not as expected" in response.error_msg


@STREAMING
@differs("tensors for debugging are left out")
def test_a_request_is_answered_and_leaves_statistics(executor: Executor, streaming: bool) -> None:
    """test_single_request"""
    asked = trtllm.Request(PROMPT, max_tokens=5, streaming=streaming)
    assert len(tokens_of(executor, asked)) == expected_tokens(asked)
    executor.get_latest_iteration_stats()
    executor.get_latest_request_stats()
    executor.get_latest_debug_tensors()


@STREAMING
def test_many_requests_are_answered_to_who_asks_for_any(
    executor: Executor, streaming: bool
) -> None:
    """test_multi_request"""
    asked = many(streaming)
    ids = [executor.enqueue_request(each) for each in asked]
    left = dict(zip(ids, asked, strict=True))
    counts: dict[tuple[int, int], int] = {}
    for _ in range(TURNS):
        for response in executor.await_responses(TURN):
            result = response.result
            key = (response.request_id, result.sequence_index)
            counts[key] = counts.get(key, 0) + len(result.output_token_ids[0])
            if result.is_final:
                del left[response.request_id]
        if not left:
            break
    by_id = dict(zip(ids, asked, strict=True))
    assert not left
    assert len(counts) == 24
    assert all(count == expected_tokens(by_id[key[0]]) for key, count in counts.items())


@STREAMING
def test_many_requests_are_answered_to_who_asks_for_their_ids(
    executor: Executor, streaming: bool
) -> None:
    """test_multi_request_with_ids"""
    asked = many(streaming)
    ids = [executor.enqueue_request(each) for each in asked]
    counts, finals = dict.fromkeys(ids, 0), 0
    for _ in range(TURNS):
        for responses in executor.await_responses(ids, timedelta(milliseconds=20)):
            for response in responses:
                if response.has_error():
                    over = "has already been processed and was terminated."
                    assert response.error_msg == f"ReqId {response.request_id} {over}"
                    continue
                counts[response.request_id] += len(response.result.output_token_ids[0])
                finals += response.result.is_final
        if finals == len(ids):
            break
    n = [each.sampling_config.num_return_sequences or 1 for each in asked]
    assert [*counts.values()] == [
        expected_tokens(each) * times for each, times in zip(asked, n, strict=True)
    ]


@STREAMING
def test_responses_that_are_ready_are_counted(model_path: Path, streaming: bool) -> None:
    """test_get_num_responses_ready"""
    with local.running(model_path) as executor:
        asked = many(streaming, end_id=None)
        ids = [executor.enqueue_request(each) for each in asked]
        expected = {
            request_id: (each.max_tokens if streaming else 1)
            * (each.sampling_config.num_return_sequences or 1)
            for request_id, each in zip(ids, asked, strict=True)
        }
        for _ in range(TURNS):
            found = {each: executor.get_num_responses_ready(each) for each in ids}
            if found == expected:
                break
            time.sleep(0.001)
        assert found == expected
        assert executor.get_num_responses_ready() == sum(expected.values())


@pytest.mark.promise("S2-093")
@pytest.mark.parametrize("generation", [False, True], ids=["", "generation logits"])
@pytest.mark.parametrize("context", [False, True], ids=["", "context logits"])
@pytest.mark.parametrize("log_probs", [False, True], ids=["", "log-probabilities"])
@STREAMING
def test_tokens_are_the_same_with_all_that_comes_beside_them(
    executor: Executor, streaming: bool, log_probs: bool, context: bool, generation: bool
) -> None:
    """test_token_comparison"""
    output = trtllm.OutputConfig(log_probs, context, generation)
    prompts = [[each, *PROMPT][: 1 + each % 5] for each in range(200, 206)]
    plain = [tokens_of(executor, trtllm.Request(each, max_tokens=8)) for each in prompts]
    asked = [
        trtllm.Request(
            numpy.array(prompt),  # type: ignore[arg-type]
            max_tokens=8,
            streaming=streaming,
            sampling_config=trtllm.SamplingConfig(
                1, num_return_sequences=2 if place % 5 == 1 else 1
            ),
            output_config=output,
            end_id=-1,
        )
        for place, prompt in enumerate(prompts)
    ]
    ids = executor.enqueue_requests(asked)
    got: dict[tuple[int, int], list[int]] = {}
    left = set(ids)
    for _ in range(TURNS):
        for response in executor.await_responses(TURN):
            result = response.result
            place = ids.index(response.request_id)
            tokens = got.setdefault((place, result.sequence_index), [])
            tokens += result.output_token_ids[0]
            made = len(tokens) - (0 if streaming else len(prompts[place]))
            if log_probs:
                assert [len(each) for each in result.log_probs or ()] == [made]
                assert len(result.cum_log_probs or ()) == 1
            else:
                assert result.log_probs is result.cum_log_probs is None
            if context:
                assert result.context_logits.shape == (len(prompts[place]), VOCABULARY)
            else:
                assert result.context_logits is None
            if generation:
                whole = (1, 8, VOCABULARY)
                shapes = ((1, 1, VOCABULARY), (8, 1, VOCABULARY)) if streaming else (whole,)
                assert result.generation_logits.shape in shapes
            if result.is_final:
                left.remove(response.request_id)
        if not left:
            break
    for (place, _), tokens in got.items():
        given = prompts[place] if streaming else []
        assert [*given, *tokens] == plain[place]
    assert len(got) == 7


@STREAMING
def test_each_end_has_its_reason(executor: Executor, streaming: bool) -> None:
    """test_finish_reason"""
    tokens = tokens_of(executor, trtllm.Request(PROMPT, max_tokens=5))[len(PROMPT) :]
    ends: tuple[dict[str, Any], ...] = (
        {}, {"end_id": tokens[2]}, {"stop_words": [tokens[1:3]]},
    )  # fmt: skip
    asked = [trtllm.Request(PROMPT, max_tokens=5, streaming=streaming, **end) for end in ends]
    ids = executor.enqueue_requests(asked)
    reasons: dict[int, list[trtllm.FinishReason]] = {}
    for _ in range(TURNS):
        for response in executor.await_responses(TURN):
            if response.result.is_final:
                reasons[response.request_id] = response.result.finish_reasons
            else:
                assert response.result.finish_reasons == [trtllm.FinishReason.NOT_FINISHED]
        if len(reasons) == 3:
            break
    kinds = trtllm.FinishReason
    assert [reasons[each] for each in ids] == [[kinds.LENGTH], [kinds.END_ID], [kinds.STOP_WORDS]]


@pytest.mark.parametrize("name", ["my_logits_pp", trtllm.Request.BATCHED_POST_PROCESSOR_NAME])
@differs("sim has no device stream, so a callback is to guard it")
def test_a_callback_decides_every_token(model_path: Path, name: str) -> None:
    """test_logits_post_processor, test_logits_post_processor_batched"""
    asked = trtllm.Request(PROMPT, max_tokens=5, client_id=123)
    asked.logits_post_processor_name = name
    with running(model_path) as executor:
        ids = [executor.enqueue_request(asked) for _ in range(4)]
        found = [each.output_token_ids[0][len(PROMPT) :] for each in results_of(executor, ids)]
    assert found == [[42] * 5] * 4


@STREAMING
@differs("the last response alone has metrics, and no engine counts blocks of KV")
def test_every_response_has_metrics(executor: Executor, streaming: bool) -> None:
    """test_request_perf_metrics"""
    output = trtllm.OutputConfig(return_perf_metrics=True)
    asked = trtllm.Request(PROMPT, max_tokens=5, streaming=streaming, output_config=output)
    for response in local.responses_of(executor, executor.enqueue_request(asked)):
        metrics = response.result.request_perf_metrics
        assert metrics is not None
        times = metrics.timing_metrics
        assert times.arrival_time < times.first_scheduled_time < times.first_token_time
        assert metrics.kv_cache_metrics.num_total_allocated_blocks == 1


@differs("no engine counts blocks of KV")
def test_the_cache_says_which_blocks_it_used_again(executor: Executor) -> None:
    """test_request_perf_metrics_kv_cache"""
    first = tokens_of(executor, trtllm.Request(PROMPT, max_tokens=32))
    output = trtllm.OutputConfig(return_perf_metrics=True)
    asked = trtllm.Request([*first, *PROMPT], max_tokens=32, output_config=output)
    (response,) = local.responses_of(executor, executor.enqueue_request(asked))
    assert response.result.request_perf_metrics is not None
    assert response.result.request_perf_metrics.kv_cache_metrics.num_reused_blocks == 2
