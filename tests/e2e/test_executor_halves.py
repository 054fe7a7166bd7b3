"""Prefill in one request and decode in another, over a stack of processes and a second router."""

from __future__ import annotations

import dataclasses
import pickle
import random
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stacks import metric_sum, until
from test_executor import PROMPT, ROOT, SECONDS, request, responses_of

from tandem.free_ports import FreePorts
from tandem.hooks.contract import Chunk, Verdict, emit, terminate
from tandem.testing.sim_stack import SimStack, sim_stack
from tandem.v1 import common_pb2
from tandem_executor import (
    AsyncExecutor,
    ContextPhaseParams,
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingParams,
    GuideType,
    OutputConfig,
    RequestType,
    Response,
    SamplingConfig,
)
from tandem_router.vouchers import Vouchers

FIRST = RequestType.REQUEST_TYPE_CONTEXT_ONLY
SECOND = RequestType.REQUEST_TYPE_GENERATION_ONLY
KEY = "0123456789abcdef0123456789abcdef"


@contextmanager
def halves_stack(folder: Path, **settings: Any) -> Iterator[SimStack]:
    """With a key; `settings` of components."""
    key = folder / "voucher.key"
    key.write_text(KEY)
    workers = {"logits_processors": {"count": "executor_callbacks:count"}}
    files: dict[str, dict[str, Any]] = {
        "prefill_worker": dict(workers),
        "decode_worker": dict(workers),
        "frontend": {"client_logits_processors": ["count"]},
        "router": {"voucher_key_file": str(key)},
    }
    hooks = {name: settings.pop(name) for name in ("hook", "prefill_hook") if name in settings}
    for name, more in settings.items():
        files[name] |= more
    with sim_stack(settings=files, run_dir=folder, **hooks) as running:
        yield running


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimStack]:
    with halves_stack(tmp_path_factory.mktemp("halves"), router={"allow_reports": True}) as running:
        yield running


@pytest.fixture(scope="module")
def router(stack: SimStack) -> str:
    return stack.stack.components["router"].address


@pytest.fixture(scope="module")
def executor(router: str) -> Iterator[Executor]:
    with Executor(router, ExecutorConfig(router_wait_seconds=SECONDS)) as running:
        yield running


def one(executor: Executor, **fields: Any) -> Response:
    """The last response of a request, which has no other."""
    (response,) = responses_of(executor, executor.enqueue_request(request(**fields)))
    return response


def first_half(executor: Executor, **fields: Any) -> ContextPhaseParams:
    response = one(executor, type=FIRST, **fields)
    assert not response.has_error(), response.error_msg
    params = response.result.context_phase_params
    assert params is not None
    assert params.req_id == response.request_id
    assert response.result.output_token_ids == [[*PROMPT, *params.first_gen_tokens]]
    again: ContextPhaseParams = pickle.loads(pickle.dumps(params))
    assert again == params
    return again


def second_half(executor: Executor, params: ContextPhaseParams, **fields: Any) -> Response:
    return one(executor, type=SECOND, context_phase_params=params, **fields)


def gauge(stack: SimStack, name: str, worker: str = "prefill_worker-0") -> float:
    launch = stack.stack.components[worker].launch
    with urllib.request.urlopen(f"http://{launch.metrics}/metrics", timeout=10) as response:
        return metric_sum(response.read().decode(), name, {})


def parked(stack: SimStack) -> float:
    return gauge(stack, "tandem_worker_parked")


FORM = GuidedDecodingParams(GuideType.REGEX, "[a-z]{3} [0-9]{4}")


@pytest.mark.promise("S2-082")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling_config": SamplingConfig(top_k=50, top_p=0.9, temperature=0.9, seed=7)},
        {"logits_post_processor_name": "count", "client_id": 5},
        {"guided_decoding_params": FORM, "max_tokens": 30},
        {"embedding_bias": [5.0] * 300 + [0.0] * 1748},
        {"cache_salt_id": 4},
        {"end_id": 5},
    ],
    ids=lambda fields: next(iter(fields), "plain"),
)
def test_the_two_halves_are_the_whole(executor: Executor, fields: dict[str, Any]) -> None:
    whole = one(executor, **fields).result
    params = first_half(executor, **fields)
    assert params.first_gen_tokens == whole.output_token_ids[0][len(PROMPT) :][:1]
    result = second_half(executor, params, **fields).result
    assert result.output_token_ids == whole.output_token_ids
    assert result.finish_reasons == whole.finish_reasons
    assert result.context_phase_params is None


def test_log_probabilities_are_those_of_the_whole(executor: Executor) -> None:
    output = OutputConfig(return_log_probs=True)
    whole = one(executor, output_config=output).result
    first = one(executor, output_config=output, type=FIRST).result
    assert first.log_probs == [whole.log_probs[0][:1]]
    params = first.context_phase_params
    second = second_half(executor, params, output_config=output).result
    assert second.log_probs == whole.log_probs


def test_a_stop_word_that_begins_in_the_first_half_ends_the_second(executor: Executor) -> None:
    answer = one(executor).result.output_token_ids[0][len(PROMPT) :]
    words = [answer[:2]]
    params = first_half(executor, stop_words=words)
    result = second_half(executor, params, stop_words=words).result
    assert result.output_token_ids == [[*PROMPT, *answer[:2]]]
    assert result.finish_reasons == [FinishReason.STOP_WORDS]


def test_each_half_says_where_its_time_went(executor: Executor) -> None:
    output = OutputConfig(return_perf_metrics=True)
    first = one(executor, type=FIRST, output_config=output).result
    params = first.context_phase_params
    assert params is not None
    second = second_half(executor, params, output_config=output).result
    assert first.request_perf_metrics is not None
    assert second.request_perf_metrics is not None
    began = first.request_perf_metrics.timing_metrics
    assert (began.first_scheduled_time, began.first_token_time) == (None, None)
    timing = second.request_perf_metrics.timing_metrics
    assert timing.first_scheduled_time is not None
    assert timing.first_token_time is not None
    assert timing.kv_cache_transfer_start is not None
    assert timing.kv_cache_size
    assert began.arrival_time < timing.arrival_time <= timing.first_scheduled_time
    assert timing.kv_cache_transfer_start <= timing.first_token_time


def test_the_second_half_streams(executor: Executor) -> None:
    expected = one(executor).result.output_token_ids[0][len(PROMPT) :]
    params = first_half(executor)
    asked = request(type=SECOND, context_phase_params=params, streaming=True)
    responses = responses_of(executor, executor.enqueue_request(asked))
    assert [each.result.output_token_ids[0] for each in responses] == [[t] for t in expected]


@pytest.mark.promise("S6-190")
def test_a_voucher_serves_once(executor: Executor, stack: SimStack) -> None:
    params = first_half(executor)
    assert not second_half(executor, params).has_error()
    assert second_half(executor, params).error_code == "voucher_refused"
    until(lambda: parked(stack) == 0)


@pytest.mark.promise("S6-190")
def test_of_many_that_use_one_voucher_at_once_one_is_answered(executor: Executor) -> None:
    params = first_half(executor)
    asked = request(type=SECOND, context_phase_params=params)
    lists = executor.await_responses(executor.enqueue_requests([asked] * 20), SECONDS)
    codes = sorted(responses[0].error_code for responses in lists)
    assert codes == [""] + ["voucher_refused"] * 19


def changed(params: ContextPhaseParams, **fields: Any) -> ContextPhaseParams:
    """Another voucher, signed as the deployment does it."""
    assert params.opaque_state
    signed = common_pb2.SignedVoucher.FromString(params.opaque_state)
    content = common_pb2.Voucher.FromString(signed.voucher)
    given = {
        "room": content.room,
        "kv_peer": content.kv_peer,
        "model": content.model,
        "task_digest": content.task_digest,
        "first_token_ids": tuple(content.first_token_ids),
    }
    key = fields.pop("key", KEY).encode()
    lease = fields.pop("lease", 60.0)
    state = Vouchers(key).signed(common_pb2.Voucher(**given | fields), lease_seconds=lease)
    return dataclasses.replace(params, opaque_state=state)


@pytest.mark.promise("S6-190")
@pytest.mark.parametrize(
    "fields",
    [
        {"key": "another deployment's key, long enough"},
        {"lease": -1.0},
        {"model": "other"},
        {"room": 12345},
        {"kv_peer": "127.0.0.1:1"},
        {"task_digest": bytes(32)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_stale_foreign_or_made_up_voucher_is_refused_and_the_good_one_serves(
    executor: Executor, fields: dict[str, Any]
) -> None:
    params = first_half(executor)
    assert second_half(executor, changed(params, **fields)).error_code == "voucher_refused"
    assert not second_half(executor, changed(params)).has_error()


@pytest.mark.promise("S6-190")
@pytest.mark.parametrize(
    "fields",
    [
        {"input_token_ids": [9, 9, 9, 9]},
        {"sampling_config": SamplingConfig(top_k=50, seed=7)},
        {"cache_salt_id": 9},
        {"stop_words": [[5, 6]]},
        {"embedding_bias": [5.0] * 300 + [0.0] * 1748},
        {"logits_post_processor_name": "count", "client_id": 5},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_the_second_half_of_another_request_is_refused(
    executor: Executor, fields: dict[str, Any]
) -> None:
    params = first_half(executor)
    assert second_half(executor, params, **fields).error_code == "voucher_refused"
    assert not second_half(executor, params).has_error(), "it is not used up by that"


async def test_the_asyncio_twin_takes_either_half(executor: Executor, router: str) -> None:
    expected = one(executor).result.output_token_ids
    async with AsyncExecutor(router) as twin:
        (response,) = await twin.await_responses(twin.enqueue_request(request(type=FIRST)), SECONDS)
        params = response.result.context_phase_params
        asked = request(type=SECOND, context_phase_params=params)
        (response,) = await twin.await_responses(twin.enqueue_request(asked), SECONDS)
    assert response.result.output_token_ids == expected


def test_any_router_with_the_key_takes_the_second_half_also_after_the_first_has_died(
    executor: Executor, stack: SimStack, tmp_path: Path, free: FreePorts
) -> None:
    components = stack.stack.components
    key = tmp_path / "key"
    key.write_text(KEY + "\n")
    address, metrics = free.address(), free.address()
    flags = [
        f"--listen={address}",
        f"--metrics-listen={metrics}",
        f"--prefill={components['prefill_worker-0'].address}",
        f"--decode={components['decode_worker-0'].address}",
    ]
    command = [sys.executable, "-m", "tandem_router", *flags]
    expected = one(executor).result.output_token_ids
    params = first_half(executor)
    components["router"].process.send_signal(signal.SIGKILL)
    components["router"].process.wait(SECONDS)
    try:
        for given, codes in (
            ([], ["unsupported_parameter"]),
            ([f"--voucher-key-file={key}"], ["", "voucher_refused"]),
        ):
            with subprocess.Popen([*command, *given], cwd=ROOT) as other:
                try:
                    config = ExecutorConfig(router_wait_seconds=SECONDS)
                    with Executor(address, config) as elsewhere:
                        for code in codes:
                            response = second_half(elsewhere, params)
                            assert response.error_code == code
                            if not code:
                                assert response.result.output_token_ids == expected
                finally:
                    other.terminate()
    finally:
        stack.stack.restart("router")
    assert one(executor).result.output_token_ids == expected


@pytest.mark.promise("S6-190")
def test_a_prefill_worker_keeps_no_more_than_it_may_and_what_it_kept_dies_with_it(
    tmp_path: Path,
) -> None:
    with halves_stack(tmp_path, prefill_worker={"max_parked": 2}) as running:
        components = running.stack.components
        with Executor(components["router"].address) as executor:
            params = [first_half(executor) for _ in range(2)]
            assert one(executor, type=FIRST).error_code == "parking_full"
            assert not one(executor).has_error(), "others are not bounded by that"
            assert not second_half(executor, params[0]).has_error()
            until(lambda: parked(running) == 1)
            params.append(first_half(executor))
            prefill = components["prefill_worker-0"].process
            decode = components["decode_worker-0"].process
            assert decode.poll() is None
            prefill.send_signal(signal.SIGKILL)
            prefill.wait(SECONDS)
            codes = {second_half(executor, each).error_code for each in params[1:]}
            assert codes <= {"voucher_refused", "no_pair", "kv_transfer_failed"}
            assert "" not in codes


def test_without_a_key_both_types_are_refused_by_name(tmp_path: Path) -> None:
    with (
        halves_stack(tmp_path, router={"voucher_key_file": ""}) as running,
        Executor(running.stack.components["router"].address) as executor,
    ):
        state = common_pb2.SignedVoucher(signature=b"x").SerializeToString()
        for response in (
            one(executor, type=FIRST),
            second_half(executor, ContextPhaseParams([], 1, state)),
        ):
            assert response.error_code == "unsupported_parameter"
            assert "voucher_key_file" in response.error_msg


class Passes:
    """A hook that lets everything go."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return emit(chunk.text_diff)


class Refuses:
    """A hook that lets nothing go."""

    def __call__(self, chunk: Chunk) -> Verdict:
        return terminate("not this")


def test_hooks_of_both_phases_judge_each_its_half(tmp_path: Path) -> None:
    with (
        halves_stack(tmp_path, prefill_hook=Passes, hook=Refuses) as running,
        Executor(running.stack.components["router"].address) as executor,
    ):
        params = first_half(executor)
        assert len(params.first_gen_tokens) == 1
        result = second_half(executor, params).result
        assert (result.withheld, result.stop_reason) == (True, "not this")


def test_prefill_s_hook_ends_the_first_half_before_its_token_is_shown(tmp_path: Path) -> None:
    with (
        halves_stack(tmp_path, prefill_hook=Refuses) as running,
        Executor(running.stack.components["router"].address) as executor,
    ):
        result = one(executor, type=FIRST).result
        assert (result.withheld, result.stop_reason) == (True, "not this")
        assert result.finish_reasons == [FinishReason.STOP_WORDS]
        assert (result.output_token_ids, result.context_phase_params) == ([PROMPT], None)
        until(lambda: parked(running) == 0)


@pytest.mark.promise("S6-190")
def test_what_decode_alone_would_judge_is_not_shown(tmp_path: Path) -> None:
    with (
        halves_stack(tmp_path, hook=Passes) as running,
        Executor(running.stack.components["router"].address) as executor,
    ):
        assert one(executor, type=FIRST).error_code == "unsupported_parameter"
        assert not one(executor).has_error()


def test_whatever_threads_do_with_halves_each_ends_once_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    """Nor is KV that nobody fetches, though executor and router have died."""
    ends: list[str] = []

    def work(executor: Executor, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            first = executor.enqueue_request(request(type=FIRST))
            if rng.random() < 0.2:
                executor.cancel_request(first)
            result = responses_of(executor, first)[-1]
            ends.append(result.error_code)
            if result.has_error() or (params := result.result.context_phase_params) is None:
                continue
            asked = request(type=SECOND, context_phase_params=params, max_tokens=30)
            seconds = [executor.enqueue_request(asked) for _ in range(rng.choice([0, 1, 1, 2]))]
            if seconds and rng.random() < 0.3:
                executor.cancel_request(seconds[0])
            ends.extend(responses_of(executor, each)[-1].error_code for each in seconds)

    with (
        halves_stack(tmp_path, prefill_worker={"park_seconds": 2.0}) as running,
        Executor(running.stack.components["router"].address) as executor,
        ThreadPoolExecutor(8) as threads,
    ):
        for done in [threads.submit(work, executor, seed) for seed in range(8)]:
            done.result(10 * SECONDS)
        assert set(ends) <= {"", "voucher_refused", "parking_full", "kv_transfer_failed"}
        assert ends.count("") > 300
        until(lambda: gauge(running, "tandem_worker_kv_tokens_used") == 0)
        until(lambda: gauge(running, "tandem_worker_kv_tokens_used", "decode_worker-0") == 0)
        assert parked(running) == 0
        assert not one(executor, type=FIRST).has_error()
        running.stack.components["router"].process.send_signal(signal.SIGKILL)
        until(lambda: gauge(running, "tandem_worker_kv_tokens_used") == 0)
        assert parked(running) == 0


PAGE = (ROOT / "docs" / "executor" / "context-only.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_runs(router: str, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    exec(compile(program.replace("127.0.0.1:7000", router), "page", "exec"), {})
    assert capsys.readouterr().out.startswith("[101, 102, 103, ")
