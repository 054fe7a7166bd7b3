"""The Executor API against a stack of real processes, in the shapes of upstream's own tests."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from one_case import one_case
from stacks import metric_sum

from tandem.testing.sim_stack import SimStack, sim_stack
from tandem_executor import (
    AsyncExecutor,
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingParams,
    GuideType,
    OutputConfig,
    Request,
    Response,
    SamplingConfig,
)

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30.0
PROMPT = [101, 102, 103, 104]
VOCABULARY = 2048
PROCESSORS = ["banned_sequences", "no_repeat_ngram", "min_new_tokens"]
PROMPTS = 1_500
"""Of a batch: more than are in memory at once, even of those left after an interruption."""


CALLBACKS = {
    "favour": "executor_callbacks:favour",
    "count": "executor_callbacks:count",
    "ponder": "executor_callbacks:ponder",
    "one_in": "examples.executor_callback:one_in",
    Request.BATCHED_POST_PROCESSOR_NAME: "executor_callbacks:favour_all",
}
LONG = {"max_tokens": 4000, "logits_post_processor_name": "ponder"}
"""Fields of a request that takes four seconds: nothing else paces the engine."""


@pytest.fixture(scope="module")
def stack() -> Iterator[SimStack]:
    workers = {"logits_processors": CALLBACKS}
    allowed = [*CALLBACKS, *PROCESSORS, "nobody_knows_it"]
    with sim_stack(
        settings={
            "prefill_worker": workers,
            "decode_worker": workers,
            "frontend": {"client_logits_processors": allowed},
        }
    ) as running:
        yield running


@pytest.fixture(scope="module")
def router(stack: SimStack) -> str:
    return stack.stack.components["router"].address


@pytest.fixture(scope="module")
def remote(router: str) -> Iterator[Executor]:
    """An executor at a router of processes."""
    with Executor(router, ExecutorConfig(router_wait_seconds=SECONDS)) as running:
        yield running


def _local(model_path: Path, *, disaggregated: bool) -> Iterator[Executor]:
    config = ExecutorConfig(
        disaggregated=disaggregated,
        engine="sim",
        engine_options={"step_ms": 0},
        worker_settings={"logits_processors": CALLBACKS},
    )
    with Executor(model_path, config) as running:
        yield running


@pytest.fixture(scope="module")
def aggregated(model_path: Path) -> Iterator[Executor]:
    """An executor with one engine of its own."""
    yield from _local(model_path, disaggregated=False)


@pytest.fixture(scope="module")
def pair(model_path: Path) -> Iterator[Executor]:
    """An executor with an engine of its own for each phase."""
    yield from _local(model_path, disaggregated=True)


@pytest.fixture(scope="module", params=["remote", "aggregated", "pair"])
def executor(request: pytest.FixtureRequest) -> Executor:
    """The same tests over all backends."""
    running: Executor = request.getfixturevalue(request.param)
    return running


def request(**changes: Any) -> Request:
    return Request(**{"input_token_ids": PROMPT, "max_tokens": 8} | changes)


def responses_of(executor: Executor, request_id: int) -> list[Response]:
    """All responses of a request."""
    found: list[Response] = []
    while not found or not (found[-1].has_error() or found[-1].result.is_final):
        new = executor.await_responses(request_id, SECONDS)
        assert new, "it takes too long"
        found += new
    return found


def answer(executor: Executor, **fields: Any) -> list[int]:
    """The tokens that a request generates."""
    output = OutputConfig(exclude_input_from_output=True)
    asked = request(**{"output_config": output} | fields)
    (response,) = responses_of(executor, executor.enqueue_request(asked))
    return response.result.output_token_ids[0]


def error(executor: Executor, **fields: Any) -> Response:
    (response,) = responses_of(executor, executor.enqueue_request(request(**fields)))
    assert response.has_error()
    return response


@pytest.mark.promise("S2-067", "S2-068")
@pytest.mark.parametrize(
    ("streaming", "exclude_input", "all_tokens", "sequences"),
    [*itertools.product([False, True], [False, True], [False, True], [1, 2])],
)
def test_tokens_are_the_same_however_they_are_asked_for(
    executor: Executor, streaming: bool, exclude_input: bool, all_tokens: bool, sequences: int
) -> None:
    expected = answer(executor)
    asked = request(
        streaming=streaming,
        return_all_generated_tokens=all_tokens,
        output_config=OutputConfig(exclude_input_from_output=exclude_input),
        sampling_config=SamplingConfig(num_return_sequences=sequences),
    )
    responses = responses_of(executor, executor.enqueue_request(asked))
    assert [response.result.is_final for response in responses] == [False] * (
        len(responses) - 1
    ) + [True]
    for sequence in range(sequences):
        results = [each.result for each in responses if each.result.sequence_index == sequence]
        assert [result.is_sequence_final for result in results[:-1]] == [False] * (len(results) - 1)
        assert results[-1].is_sequence_final
        assert results[-1].finish_reasons == [FinishReason.LENGTH]
        outputs = [result.output_token_ids[0] for result in results]
        if not streaming:
            assert outputs == [expected if exclude_input else PROMPT + expected]
        elif all_tokens:
            assert outputs == [expected[: end + 1] for end in range(len(expected))]
        else:
            assert outputs == [[token] for token in expected]


@pytest.mark.promise("S2-059", "S2-060", "S2-061")
def test_many_requests_by_id_by_ids_and_by_whatever_is_ready(executor: Executor) -> None:
    prompts = [[each, *PROMPT] for each in range(200, 220)]
    asked = [request(input_token_ids=prompt, streaming=True) for prompt in prompts]
    by_id, by_ids = executor.enqueue_requests(asked), executor.enqueue_requests(asked)
    first = [
        [each.result.output_token_ids[0][0] for each in responses_of(executor, request_id)]
        for request_id in by_id
    ]
    second: list[list[int]] = [[] for _ in by_ids]
    while any(len(tokens) < 8 for tokens in second):
        open_ids = [id for id, tokens in zip(by_ids, second, strict=True) if len(tokens) < 8]
        places = [by_ids.index(request_id) for request_id in open_ids]
        for place, responses in zip(
            places, executor.await_responses(open_ids, SECONDS), strict=True
        ):
            second[place] += [each.result.output_token_ids[0][0] for each in responses]
    any_ids = executor.enqueue_requests(asked)
    third: dict[int, list[int]] = {request_id: [] for request_id in any_ids}
    while any(len(tokens) < 8 for tokens in third.values()):
        for response in executor.await_responses(timeout=SECONDS):
            third[response.request_id] += response.result.output_token_ids[0]
    assert first == second == list(third.values())
    assert len({tuple(tokens) for tokens in first}) > 10, "prompts differ, so answers do"


@pytest.mark.promise("S2-058")
def test_a_request_that_comes_later_joins_one_that_runs(executor: Executor) -> None:
    long = executor.enqueue_request(request(streaming=True, **LONG))
    assert executor.await_responses(long, SECONDS)
    short = executor.enqueue_request(request(max_tokens=2))
    assert responses_of(executor, short)[-1].result.is_final
    executor.cancel_request(long)
    ends = responses_of(executor, long)[-1].result.finish_reasons
    assert ends == [FinishReason.CANCELLED], "it was still running"


@pytest.mark.promise("S2-064", "S2-065")
def test_a_cancelled_request_gives_its_kv_back(remote: Executor, stack: SimStack) -> None:
    executor = remote
    request_id = executor.enqueue_request(request(streaming=True, **LONG))
    assert executor.await_responses(request_id, SECONDS)
    assert kv_used(stack) > 0
    executor.cancel_request(request_id)
    assert responses_of(executor, request_id)[-1].result.finish_reasons == [FinishReason.CANCELLED]
    executor.cancel_request(request_id)
    deadline = time.monotonic() + SECONDS
    while kv_used(stack) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert kv_used(stack) == 0


def kv_used(stack: SimStack) -> float:
    launch = stack.stack.components["decode_worker-0"].launch
    with urllib.request.urlopen(f"http://{launch.metrics}/metrics", timeout=10) as response:
        return metric_sum(response.read().decode(), "tandem_worker_kv_tokens_used", {})


@pytest.mark.promise("S2-078", "S2-079")
def test_a_time_budget_ends_a_request_with_what_it_has(executor: Executor) -> None:
    budget = timedelta(milliseconds=150)
    asked = request(allotted_time_ms=budget, **LONG)
    (response,) = responses_of(executor, executor.enqueue_request(asked))
    assert response.result.finish_reasons == [FinishReason.TIMED_OUT]


@pytest.mark.promise("S2-069", "S2-070")
@one_case(
    ("fields", "word"),
    [
        ({"input_token_ids": []}, "prompt"),
        ({"input_token_ids": [VOCABULARY]}, "input_token_ids"),
        ({"input_token_ids": ["no token"]}, "input_token_ids"),
        ({"input_token_ids": [-1]}, "input_token_ids"),
        ({"input_token_ids": None}, "input_token_ids"),
        ({"end_id": "no token"}, "wrong kind"),
        ({"client_id": "me", "logits_post_processor_name": "favour"}, "client_id"),
        ({"sampling_config": SamplingConfig(seed=-1)}, "wrong kind"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 100_000}, "context"),
        ({"sampling_config": SamplingConfig(top_k=5, temperature=-1.0)}, "temperature"),
        ({"sampling_config": SamplingConfig(top_p=2.0)}, "top_p"),
        ({"sampling_config": SamplingConfig(beam_width=2)}, "beam_width"),
        ({"sampling_config": SamplingConfig(num_return_sequences=0)}, "num_return_sequences"),
        ({"sampling_config": SamplingConfig(repetition_penalty=-1.0)}, "repetition_penalty"),
        ({"embedding_bias": [0.0] * 7}, "embedding_bias"),
        ({"embedding_bias": [float("nan")] * VOCABULARY}, "embedding_bias"),
        ({"stop_words": [[1], [1, VOCABULARY]]}, "stop_words"),
        ({"stop_words": [[]]}, "stop_words"),
        ({"stop_words": [[1] * 257]}, "stop_words"),
        ({"bad_words": [[]]}, "bad_words"),
        ({"bad_words": [[1] * 65]}, "banned_sequences"),
        ({"priority": 2.0}, "priority"),
        ({"allotted_time_ms": 0}, "allotted_time_ms"),
        ({"allotted_time_ms": 10**30}, "allotted_time_ms"),
        ({"guided_decoding_params": GuidedDecodingParams(GuideType.REGEX, "(")}, "regex"),
    ],
)
def test_what_is_wrong_with_a_request_is_its_response(
    executor: Executor, fields: dict[str, Any], word: str
) -> None:
    response = error(executor, **fields)
    assert word in response.error_msg
    assert response.error_code in {
        "invalid_request", "unsupported_parameter", "context_length_exceeded",
    }  # fmt: skip
    with pytest.raises(RuntimeError):
        _ = response.result


@pytest.mark.promise("S2-090")
def test_bad_words_never_come(executor: Executor) -> None:
    free = answer(executor)
    without = answer(executor, bad_words=[free[:2]])
    assert without[0] == free[0]
    assert without[1] != free[1]
    both = answer(executor, bad_words=[free[:2], without[3:4]])
    assert both[:2] != free[:2]
    assert without[3] not in both


@pytest.mark.promise("S2-071", "S2-074")
def test_a_named_callback_edits_the_request_that_names_it_alone(executor: Executor) -> None:
    free = answer(executor)
    name = {"logits_post_processor_name": "favour"}
    ids = executor.enqueue_requests(
        [request(client_id=55, **name), request(), request(client_id=66, **name)]
    )
    lists = executor.await_responses(ids, SECONDS)
    outputs = [responses[0].result.output_token_ids[0][4:] for responses in lists]
    assert outputs == [[55] * 8, free, [66] * 8], "the first tokens too, which prefill makes"


@pytest.mark.promise("S2-071", "S2-074")
def test_logits_that_a_callback_returns_count_and_it_knows_the_tokens(executor: Executor) -> None:
    tokens = answer(executor, logits_post_processor_name="count")
    assert tokens == list(range(len(PROMPT), len(PROMPT) + 8))


@pytest.mark.promise("S2-073")
def test_a_batched_callback_is_given_parallel_lists(executor: Executor) -> None:
    name = Request.BATCHED_POST_PROCESSOR_NAME
    asked = [request(client_id=300 + n, logits_post_processor_name=name) for n in range(12)]
    lists = executor.await_responses(executor.enqueue_requests(asked), SECONDS)
    outputs = [responses[0].result.output_token_ids[0][4:] for responses in lists]
    assert outputs == [[300 + n] * 8 for n in range(12)]


@pytest.mark.promise("S2-072")
@pytest.mark.parametrize("name", ["nobody_knows_it", "the_router_lets_it_not_pass"])
def test_a_callback_that_nobody_knows_is_an_error_response(executor: Executor, name: str) -> None:
    assert name in error(executor, logits_post_processor_name=name).error_msg


async def test_the_asyncio_twin_gets_the_same_tokens(executor: Executor, router: str) -> None:
    expected = answer(executor)
    async with AsyncExecutor(router) as twin:
        request_id = twin.enqueue_request(request(streaming=True))
        tokens: list[int] = []
        while len(tokens) < 8:
            for response in await twin.await_responses(request_id, SECONDS):
                tokens += response.result.output_token_ids[0]
    assert tokens == expected


def example(name: str, *arguments: str) -> str:
    """What an example prints."""
    command = [sys.executable, f"examples/{name}.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=True, timeout=SECONDS,
    ).stdout  # fmt: skip


@pytest.mark.promise("S2-071", "S2-092")
def test_the_example_of_a_callback_shapes_the_answers_that_name_it_and_no_other(
    router: str,
) -> None:
    assert example("executor_callback", router).splitlines() == [
        "32 of 32 answers are as the callback wants them,",
        "32 of 32 that did not name it are not",
    ]


@pytest.mark.promise("S2-092")
def test_the_example_streams_an_answer(router: str, model_path: Path) -> None:
    answered = example("executor", router, str(model_path), "A class is")
    text, _, reason = answered.rstrip().rpartition("\n")
    assert text
    assert reason == "(LENGTH)"


PAGE = (ROOT / "docs" / "executor" / "README.md").read_text(encoding="utf-8")


def test_the_programs_of_the_page_run(
    router: str, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    with_threads, with_asyncio, local, judged = programs
    exec(compile(with_threads.replace("127.0.0.1:7000", router), "README", "exec"), {})
    remote = capsys.readouterr().out
    assert remote.startswith("[101, 102, 103, ")
    names: dict[str, Any] = {}
    exec(compile(with_asyncio, "README", "exec"), names)
    (response,) = asyncio.run(names["ask"](router))
    assert response.result.is_final
    exec(compile(local.replace("model/tandem-tiny", str(model_path)), "README", "exec"), {})
    assert capsys.readouterr().out == remote
    exec(compile(judged.replace("model/tandem-tiny", str(model_path)), "README", "exec"), {})
    assert capsys.readouterr().out.startswith("Not this. {'policy': ")


@pytest.mark.promise("S2-092")
def test_the_batch_example_answers_each_prompt_once_and_goes_on_after_an_interruption(
    router: str, tmp_path: Path
) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    lines = [json.dumps({"id": f"p{n}", "token_ids": [n % 2000, 7]}) for n in range(PROMPTS)]
    lines[77] = json.dumps({"id": "p77", "token_ids": [VOCABULARY]})
    prompts.write_text("\n".join(lines[: PROMPTS // 4]))
    run_batch(router, prompts, answers)
    whole = answers.read_text()
    answers.write_text(whole[: len(whole) * 2 // 3])  # in the middle of a line, as it happens
    prompts.write_text("\n".join(lines))
    assert run_batch(router, prompts, answers) < 300, "MiB"
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    good = [each for each in found if "error" not in each]
    assert Counter(each["id"] for each in good) == Counter(
        f"p{n}" for n in range(PROMPTS) if n != 77
    )
    assert {each["id"] for each in found if "error" in each} == {"p77"}
    assert all(len(each["token_ids"]) == 16 for each in good)


def run_batch(router: str, prompts: Path, answers: Path) -> float:
    """Returns the most memory that it was seen with, in MiB."""
    command = [sys.executable, "examples/executor_batch.py", router, str(prompts), str(answers)]
    most = 0
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL
    ) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            if peak := re.search(r"VmHWM:\s+(\d+) kB", status.read_text()):
                most = int(peak[1])
            time.sleep(0.05)
    assert process.returncode == 0
    assert most
    return most / 1024
