"""What the Executor API promises holds on either engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import fork_server
import psutil
import pytest
from rfc_classifier import PolicyHook
from stacks import Served

from tandem_executor import (
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingParams,
    GuideType,
    KvCacheStats,
    OutputConfig,
    Request,
    Response,
    SamplingConfig,
    ShutDownError,
)

SECONDS = 60.0
PROMPT = [101, 102, 103, 104]
CACHE_TOKENS = 16384
LONG, ANSWER = 500, 3000
"""Tokens of a prompt that shows in a KV cache, and of what is generated after it."""
AHEAD = 16
"""Tokens for which an engine may take room before they come."""
OWN = pytest.mark.parametrize(
    ("engine", "disaggregated"),
    [
        ("sim", False),
        ("sim", True),
        pytest.param("sglang", True, marks=[pytest.mark.sglang, pytest.mark.long]),
    ],
)


@pytest.fixture
def executor(served: Served) -> Iterator[Executor]:
    with Executor(served.stack.components["router"].address) as running:
        yield running


@contextmanager
def nothing_left() -> Iterator[set[psutil.Process]]:
    """No process that the block starts outlives it; with those that there were before, which may
    start others: a worker does in place of a process that compiles forms and took too long.
    """
    before = set(psutil.Process().children(recursive=True))
    yield before
    new = set(psutil.Process().children(recursive=True)) - before
    assert {each for each in new if not _is_of(before, each)} == set()


def _is_of(before: set[psutil.Process], process: psutil.Process) -> bool:
    """Whether one of them has started it, or it has ended meanwhile."""
    try:
        return not before.isdisjoint(process.parents())
    except psutil.NoSuchProcess:
        return True


@pytest.mark.promise("S2-064", "S2-067", "S2-068", "S2-071", "S4-121", "S4-130")
@OWN
@pytest.mark.timeout(900)
def test_engines_of_its_own_answer_as_those_of_a_stack_and_leave_nothing(
    engine: Any, disaggregated: bool, model_path: Path, request: pytest.FixtureRequest
) -> None:
    served: Served = request.getfixturevalue(engine)
    config = ExecutorConfig(engine=engine, disaggregated=disaggregated)
    with nothing_left(), Executor(model_path, config) as own:
        answers_as_a_stack(own, served, disaggregated=disaggregated)
        a_programs_classifier_judges(own)


def answers_as_a_stack(own: Executor, served: Served, *, disaggregated: bool) -> None:
    with Executor(served.stack.components["router"].address) as remote:
        expected = responses_of(remote)[0].result.output_token_ids
    assert responses_of(own)[0].result.output_token_ids == expected
    streamed = [each.result.output_token_ids[0] for each in responses_of(own, streaming=True)]
    assert streamed == [[token] for token in expected[0]]
    test_a_running_request_is_cancelled(own)
    measured = OutputConfig(return_perf_metrics=True)
    metrics = responses_of(own, output_config=measured)[0].result.request_perf_metrics
    assert metrics is not None
    assert (metrics.timing_metrics.kv_cache_size is not None) == disaggregated
    if served.engine == "sglang":
        (refused,) = responses_of(own, logits_post_processor=print)
        assert "logits_post_processor" in refused.error_msg


@pytest.mark.promise("S2-077")
@pytest.mark.parametrize("disaggregated", [False, True], ids=["aggregated", "pair"])
@pytest.mark.timeout(900)
def test_the_kv_cache_of_its_own_engine_fills_with_what_runs_and_empties_again(
    disaggregated: bool, model_path: Path
) -> None:
    options = {"max_total_tokens": CACHE_TOKENS}
    config = ExecutorConfig(engine="sim", disaggregated=disaggregated, engine_options=options)
    with Executor(model_path, config) as own:
        fills_and_empties(own, "sim")


@pytest.mark.promise("S2-064", "S2-067", "S2-068", "S2-071", "S2-077", "S4-121", "S4-130")
@pytest.mark.sglang
@pytest.mark.timeout(900)
def test_an_sglang_engine_of_its_own_answers_fills_its_cache_and_fails_what_it_had_when_it_dies(
    model_path: Path, sglang: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fork_server.OTHERS, "yes")
    config = ExecutorConfig(engine="sglang", engine_options={"max_total_tokens": CACHE_TOKENS})
    with nothing_left() as before, Executor(model_path, config) as own:
        answers_as_a_stack(own, sglang, disaggregated=False)
        fills_and_empties(own, "sglang")
        a_programs_classifier_judges(own)
        request_id = own.enqueue_request(Request(PROMPT, max_tokens=2000, streaming=True))
        assert own.await_responses(request_id, SECONDS)
        made = set(psutil.Process().children(recursive=True)) - before
        (scheduler,) = [each for each in made if "scheduler" in each.name()]
        scheduler.kill()
        found = own.await_responses(request_id, SECONDS)
        while not found[-1].has_error():
            found = own.await_responses(request_id, SECONDS)
        assert found[-1].error_code == "engine_error"
        with pytest.raises(ShutDownError, match="failed"):
            _ask_on(own)


def _ask_on(own: Executor) -> NoReturn:
    """The executor learns of an engine's death a moment later; what it takes until then fails."""
    while True:
        late = own.enqueue_request(Request(PROMPT, max_tokens=2))
        assert own.await_responses(late, SECONDS)[-1].error_code == "engine_error"


def a_programs_classifier_judges(own: Executor) -> None:
    """One that is registered once the engine runs, wherever that runs."""
    (free,) = responses_of(own)
    own.register_external_classifier_hook(PolicyHook())
    for policy in ("lenient", "strict"):
        (answer,) = responses_of(own, extra_fields={"my_policy": policy})
        scores = {"tokens": 8, "seen": {"my_policy": policy}, "block": policy == "strict"}
        assert answer.result.external_scores == {"policy": scores}
        assert answer.result.withheld is scores["block"]
        shown = [[]] if scores["block"] else free.result.output_token_ids
        assert answer.result.output_token_ids == shown
    assert answer.result.replacement == "Replaced by policy."


def fills_and_empties(own: Executor, engine: str) -> None:
    """The KV cache of an executor's engine, as its statistics say it."""
    empty = kv_cache_when(own, lambda _: True)
    assert empty.max_num_blocks is not None
    assert empty.tokens_per_block is not None
    assert empty.max_num_blocks * empty.tokens_per_block == CACHE_TOKENS
    whole = max(empty.tokens_per_block, AHEAD)
    running = own.enqueue_requests(
        [
            Request([*range(start, start + LONG)], max_tokens=ANSWER, streaming=True)
            for start in (300, 1000)
        ]
    )
    least, most = 2 * LONG, 2 * (LONG + ANSWER)  # sim takes room for all of an answer at once
    for reached in (least, least + 2 * whole):  # the prompts; then what was generated, too
        filled = kv_cache_when(own, lambda cache, reached=reached: held(cache) >= reached)
        if engine == "sglang":
            most = least + sum(map(own.get_num_responses_ready, running))
        assert held(filled) <= most + 3 * whole
        assert filled.free_num_blocks == empty.max_num_blocks - blocks(filled)
    for request_id in running:
        own.cancel_request(request_id)
    kv_cache_when(own, lambda cache: held(cache) <= whole)


def kv_cache_when(executor: Executor, so: Callable[[KvCacheStats], bool]) -> KvCacheStats:
    """The first that is so. Short requests, of a few tokens each, have it said again."""
    until = time.monotonic() + SECONDS
    found: KvCacheStats | None = None
    while found is None or not found.max_num_blocks or not so(found):
        assert time.monotonic() < until, found
        responses_of(executor, max_tokens=1)
        found = executor.get_latest_iteration_stats()[-1].kv_cache_stats
    return found


def blocks(cache: KvCacheStats) -> int:
    """Those that are used."""
    assert cache.used_num_blocks is not None
    return cache.used_num_blocks


def held(cache: KvCacheStats) -> int:
    """Tokens that those have room for."""
    assert cache.tokens_per_block is not None
    return blocks(cache) * cache.tokens_per_block


def responses_of(executor: Executor, **fields: Any) -> list[Response]:
    """All responses of a request."""
    output = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    given = {"input_token_ids": PROMPT, "max_tokens": 8, "output_config": output} | fields
    request_id = executor.enqueue_request(Request(**given))
    found: list[Response] = []
    while not found or not (found[-1].has_error() or found[-1].result.is_final):
        new = executor.await_responses(request_id, SECONDS)
        assert new, "it takes too long"
        found += new
    return found


@pytest.mark.promise("S2-067", "S2-068")
def test_streamed_and_collected_tokens_are_the_same(executor: Executor) -> None:
    (whole,) = responses_of(executor)
    assert whole.result.finish_reasons == [FinishReason.LENGTH]
    each = [response.result for response in responses_of(executor, streaming=True)]
    assert [result.output_token_ids[0][0] for result in each] == whole.result.output_token_ids[0]
    assert whole.result.log_probs is not None
    (log_probs,) = whole.result.log_probs
    assert [result.log_probs for result in each] == [
        [pytest.approx(log_probs[: place + 1], abs=0.05)] for place in range(len(log_probs))
    ]
    assert whole.result.cum_log_probs == [pytest.approx(sum(log_probs))]
    assert each[-1].cum_log_probs == [pytest.approx(sum(log_probs), abs=0.05 * len(log_probs))]


@pytest.mark.promise("S2-078")
def test_an_end_token_and_a_stop_word_are_told_apart(executor: Executor) -> None:
    (free,) = responses_of(executor)
    tokens = free.result.output_token_ids[0]
    place = next(place for place in range(1, 8) if tokens[place] not in tokens[:place])
    for fields, reason in (
        ({"end_id": tokens[place]}, FinishReason.END_ID),
        ({"end_id": 0, "stop_words": [[tokens[place]]]}, FinishReason.STOP_WORDS),
        ({"stop_words": [[tokens[place]]]}, FinishReason.STOP_WORDS),
        ({"stop_words": [tokens[: place + 1]]}, FinishReason.STOP_WORDS),
    ):
        (ended,) = responses_of(executor, **fields)
        assert ended.result.output_token_ids == [tokens[: place + 1]]
        assert ended.result.finish_reasons == [reason]


@pytest.mark.promise("S2-064")
def test_a_running_request_is_cancelled(executor: Executor) -> None:
    request_id = executor.enqueue_request(Request(PROMPT, max_tokens=2000, streaming=True))
    assert executor.await_responses(request_id, SECONDS)
    executor.cancel_request(request_id)
    last = executor.await_responses(request_id, SECONDS)[-1]
    assert last.result.finish_reasons == [FinishReason.CANCELLED]


def test_a_bias_chooses_and_sequences_differ(executor: Executor, served: Served) -> None:
    bias = [0.0] * 2048
    bias[77] = 100.0
    (biased,) = responses_of(executor, embedding_bias=bias)
    assert biased.result.output_token_ids == [[77] * 8]
    sampling = SamplingConfig(num_return_sequences=2, top_p=1.0, temperature=1.5, seed=3)
    both = responses_of(executor, sampling_config=sampling)
    assert sorted(each.result.sequence_index for each in both) == [0, 1]
    if served.engine == "sglang":  # sim's temperature changes nothing
        first, second = (each.result.output_token_ids for each in both)
        assert first != second


def test_a_guided_answer_has_its_form(executor: Executor) -> None:
    guided = GuidedDecodingParams(GuideType.REGEX, "(yes|no)")
    (answer,) = responses_of(executor, max_tokens=30, guided_decoding_params=guided)
    assert answer.result.finish_reasons == [FinishReason.END_ID]


@pytest.mark.promise("S2-069")
def test_what_no_engine_takes_is_an_error_response(executor: Executor) -> None:
    (response,) = responses_of(executor, max_tokens=100_000)
    assert response.error_code == "context_length_exceeded"
