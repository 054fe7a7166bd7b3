"""Classifiers of a program's own, and what a program is told of outputs that classifiers judge."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import both
import fake_router
import pytest
from both import Either
from fake_router import Reply
from judges import HELD_BACK, Judge, doing
from local import PROMPT, SECONDS, request, sim

from tandem.errors import LoadError, UnsupportedError
from tandem.hooks.classifiers.contract import ScoringContext
from tandem_executor import (
    AsyncExecutor,
    Executor,
    ExecutorConfig,
    FinishReason,
    OutputConfig,
    Request,
    RequestType,
    Response,
    SamplingConfig,
    ShutDownError,
)

KINDS = pytest.mark.parametrize("kind", ["threads", "asyncio"])


Start = Callable[..., Any]


@pytest.fixture
async def start(model_path: Path) -> AsyncIterator[Start]:
    """Starts an executor of a kind with engines of its own."""
    async with AsyncExitStack() as stack:

        async def go(kind: str, **changes: Any) -> Either:
            config = sim(**{"worker_settings": HELD_BACK} | changes)
            return await stack.enter_async_context(both.running(kind, model_path, config))

        yield go


async def last(executor: Either, asked: Request) -> Response:
    return (await both.final(executor, executor.enqueue_request(asked)))[-1]


@pytest.mark.promise("S4-121", "S4-122", "S4-123", "S4-127")
@pytest.mark.parametrize("disaggregated", [False, True], ids=["aggregated", "pair"])
@KINDS
async def test_a_program_registers_a_classifier_and_has_its_scores(
    start: Start, kind: str, disaggregated: bool
) -> None:
    executor, judge = await start(kind, disaggregated=disaggregated), Judge()
    before = await last(executor, request())
    assert before.result.external_scores is None
    executor.register_external_classifier_hook(judge)
    asked = request(metadata={"team": "a"}, extra_fields={"policy": [1, {"strict": None}]})
    result = (await last(executor, asked)).result
    assert result.external_scores == {"mine": {"risk": 0}}
    assert (result.withheld, result.replacement) == (False, "")
    (ctx,) = judge.given
    assert ctx.extra_fields == {"policy": [1, {"strict": None}]}
    assert ctx.request_metadata["metadata"] == {"team": "a"}
    assert ctx.output_token_ids == result.output_token_ids[0]
    assert len(ctx.output_logprobs) == len(ctx.output_token_ids)
    assert all(logprob < 0 for logprob in ctx.output_logprobs)
    assert ctx.generated_text
    assert result.log_probs is None


@pytest.mark.promise("S4-124", "S4-131")
@pytest.mark.parametrize(
    ("do", "replacement", "scores"),
    [
        ("block", "Not this.", {"block": True, "risk": 1}),
        ("raise", "No.", {"error": "exception"}),
        ("hang", "No.", {"error": "timeout"}),
    ],
)
@KINDS
async def test_what_it_blocks_or_fails_at_is_withheld_and_its_replacement_shown(
    start: Start, kind: str, do: str, replacement: str, scores: Mapping[str, Any]
) -> None:
    executor, judge = await start(kind), Judge()
    executor.register_external_classifier_hook(judge)
    output = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    for streaming in (False, True):
        result = (await last(executor, doing(do, streaming=streaming, output_config=output))).result
        assert (result.output_token_ids, result.log_probs) == ([[]], [[]])
        assert (result.withheld, result.stop_reason) == (True, "mine")
        assert result.finish_reasons == [FinishReason.STOP_WORDS]
        assert result.replacement == replacement
        assert result.external_scores == {"mine": scores}
    if do == "hang":
        assert await asyncio.to_thread(judge.cancelled.wait, SECONDS)


@pytest.mark.promise("S4-131")
async def test_that_of_an_asyncio_program_is_awaited_on_the_programs_loop(
    start: Start, model_path: Path
) -> None:
    early, late = Judge("early"), Judge("late")
    executor = AsyncExecutor(model_path, sim(worker_settings=HELD_BACK))
    executor.register_external_classifier_hook(early)
    async with executor:
        executor.register_external_classifier_hook(late)
        result = (await last(executor, request())).result  # type: ignore[arg-type]
    assert set(result.external_scores or ()) == {"early", "late"}
    assert early.threads == late.threads == {threading.get_ident()}
    threads = await start("threads")
    threads.register_external_classifier_hook(early)
    await last(threads, request())
    assert len(early.threads) == 2


@pytest.mark.promise("S4-121")
@KINDS
async def test_what_is_no_classifier_or_comes_too_late_is_refused(start: Start, kind: str) -> None:
    executor = await start(kind)
    register = executor.register_external_classifier_hook
    register(Judge())
    with pytest.raises(LoadError, match="two classifiers named 'mine'"):
        register(Judge())
    with pytest.raises(LoadError, match="needs a name"):
        register(object())
    await executor.shutdown()
    with pytest.raises(ShutDownError):
        register(Judge("other"))


@pytest.mark.promise("S4-126")
@KINDS
async def test_a_router_elsewhere_takes_no_object_and_says_so_by_name(kind: str) -> None:
    async with both.running(kind, "127.0.0.1:1", ExecutorConfig()) as executor:
        with pytest.raises(UnsupportedError, match="register_external_classifier_hook") as refused:
            executor.register_external_classifier_hook(Judge())  # type: ignore[attr-defined]
    assert refused.value.param == "register_external_classifier_hook"


@pytest.mark.promise("S4-124")
async def test_logits_are_not_shown_where_a_classifier_judges(start: Start) -> None:
    executor = await start("threads")
    output = OutputConfig(return_generation_logits=True)
    asked = doing("block", output_config=output)
    assert (await last(executor, asked)).result.generation_logits is not None
    executor.register_external_classifier_hook(Judge())
    refused = await last(executor, asked)
    assert "return_generation_logits" in refused.error_msg


@pytest.mark.promise("S4-124")
async def test_logits_that_were_asked_for_before_a_classifier_came_are_withheld_with_the_rest(
    start: Start,
) -> None:
    executor = await start("threads", max_open_sequences=1, engine_options={"step_ms": 2})
    output = OutputConfig(return_generation_logits=True, exclude_input_from_output=True)
    running = executor.enqueue_request(request(max_tokens=2000))
    waiting = executor.enqueue_request(doing("block", output_config=output))
    executor.register_external_classifier_hook(Judge())
    executor.cancel_request(running)
    result = (await both.final(executor, waiting))[-1].result
    assert result.withheld
    assert (result.generation_logits, result.output_token_ids) == (None, [[]])


FIRST = {"type": RequestType.REQUEST_TYPE_CONTEXT_ONLY}


@pytest.mark.promise("S5-621")
async def test_no_first_token_is_shown_that_a_registered_classifier_does_not_judge(
    start: Start,
) -> None:
    executor = await start(
        "threads",
        disaggregated=True,
        max_open_sequences=1,
        engine_options={"step_ms": 2},
        worker_settings={"classifiers": {"hold_back": "all"}},
    )
    params = (await last(executor, request(**FIRST))).result.context_phase_params
    running = executor.enqueue_request(request(max_tokens=2000))
    waiting = executor.enqueue_request(request(**FIRST))
    executor.register_external_classifier_hook(Judge())
    executor.cancel_request(running)
    late = executor.enqueue_request(request(**FIRST))
    for refused in [(await both.final(executor, each))[-1] for each in (waiting, late)]:
        assert refused.error_code == "unsupported_parameter"
        assert "classifier" in refused.error_msg
    second = {"type": RequestType.REQUEST_TYPE_GENERATION_ONLY, "context_phase_params": params}
    result = (await last(executor, doing("block", **second))).result
    assert (result.withheld, result.output_token_ids) == (True, [[]])


@pytest.mark.promise("S5-621")
@pytest.mark.parametrize("early", [True, False], ids=["classifier", "log-probabilities"])
async def test_nor_one_whose_classifier_is_there_or_needs_its_log_probability(
    model_path: Path, early: bool
) -> None:
    settings = {"classifiers": {"logprobs": not early}}
    executor = AsyncExecutor(model_path, sim(disaggregated=True, worker_settings=settings))
    if early:
        executor.register_external_classifier_hook(Judge())
    async with executor:
        refused = await last(executor, request(**FIRST))  # type: ignore[arg-type]
    assert refused.error_code == "unsupported_parameter"
    assert "context-only" in refused.error_msg


@pytest.mark.promise("S4-128")
async def test_a_verdict_asks_for_another_try_with_sampling_of_its_own(start: Start) -> None:
    class Stricter(Judge):
        async def score(self, ctx: ScoringContext) -> dict[str, Any]:
            self.given.append(ctx)
            if ctx.request_metadata["regeneration"]:
                return {}
            return {"block": True, "regenerate": {"temperature": 0}}

    again = {"when": "asked", "may_set": {"temperature": [0, 1]}}
    settings = {"classifiers": {"hold_back": "all", "regenerate": again}}
    executor, judge = await start("threads", worker_settings=settings), Stricter()
    greedy = (await last(executor, request())).result.output_token_ids
    executor.register_external_classifier_hook(judge)
    sampled: dict[str, Any] = {"top_k": 50, "temperature": 2.0, "seed": 5}
    result = (await last(executor, request(sampling_config=SamplingConfig(**sampled)))).result
    assert len(judge.given) == 2
    assert judge.given[0].output_token_ids != judge.given[1].output_token_ids
    assert result.output_token_ids == greedy


@pytest.mark.promise("S2-069", "S6-460")
@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"extra_fields": {"a": object()}}, "extra_fields"),
        ({"extra_fields": {"a": float("nan")}}, "extra_fields"),
        ({"extra_fields": {"a": "x" * 200_000}}, "extra_fields"),
        ({"extra_fields": {"a": json.loads("[" * 40 + "]" * 40)}}, "a"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {1: "a"}}, "metadata"),
        ({"metadata": ["a"]}, "wrong kind"),
    ],
    ids=["no JSON", "NaN", "large", "deep", "no text", "no name", "no mapping"],
)
def test_what_cannot_be_given_to_classifiers_is_an_error_of_its_request(
    given: dict[str, Any], param: str, model_path: Path
) -> None:
    with Executor(model_path, sim()) as executor:
        (refused,) = executor.await_responses(executor.enqueue_request(request(**given)), SECONDS)
    assert refused.error_code == "invalid_request"
    assert param in refused.error_msg


# --- a router elsewhere ---------------------------------------------------------------------------


def withheld(scores: str) -> fake_router.Script:
    async def script(reply: Reply) -> None:
        reply.text("Not ", tokens=0)
        reply.text("this.", tokens=0)
        reply.finish(withheld=True, stop_reason="theirs", external_scores=scores)

    return script


@pytest.mark.promise("S4-122", "S4-123", "S4-124")
@KINDS
async def test_a_router_is_asked_for_scores_where_the_program_says_so(kind: str) -> None:
    tasks = []

    async def script(reply: Reply) -> None:
        tasks.append(reply.task)
        await withheld('{"theirs": {"risk": 1}}')(reply)

    fleet = fake_router.fleet(model="tandem-tiny", tokenizer_sha256="any")
    async with (
        fake_router.running(script, fleet) as router,
        both.running(kind, router.address, ExecutorConfig()) as executor,
    ):
        asked = OutputConfig(return_external_scores=True, exclude_input_from_output=True)
        given = {"metadata": {"team": "a"}, "extra_fields": {"policy": 1}}
        answer = (await last(executor, Request(PROMPT, 4, output_config=asked, **given))).result
        await last(executor, Request(PROMPT, 4))
    assert answer.external_scores == {"theirs": {"risk": 1}}
    assert (answer.replacement, answer.stop_reason) == ("Not this.", "theirs")
    assert answer.output_token_ids == [[]]
    assert [task.want_external_scores for task in tasks] == [True, False]
    assert dict(tasks[0].metadata) == {"team": "a"}
    assert json.loads(tasks[0].extra_fields) == {"policy": 1}


@KINDS
async def test_scores_that_cannot_be_read_end_their_request_alone(kind: str) -> None:
    fleet = fake_router.fleet(model="tandem-tiny", tokenizer_sha256="any")
    async with (
        fake_router.running(withheld("{"), fleet) as router,
        both.running(kind, router.address, ExecutorConfig()) as executor,
    ):
        for _ in range(2):
            answer = await last(executor, Request(PROMPT, 4))
            assert answer.error_code == "worker_error"
