"""Classifiers judge together, each in its own time, and whatever they do becomes an outcome."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from odd_verdicts import LyingText
from one_case import one_case

from tandem.errors import LoadError
from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext, ScoringError
from tandem.hooks.classifiers.counters import CLASSIFIER_SECONDS
from tandem.hooks.classifiers.scores import MAX_REPLACEMENT_CHARS, MAX_SCORES_BYTES
from tandem.hooks.classifiers.settings import ClassifierSettings
from tandem.worker.hook_metrics import classifier_metrics

CONTEXT = ScoringContext(
    request_id="r-1",
    prompt="question",
    generated_text="a secret answer",
    extra_fields={"tenant": {"name": "acme"}},
    finish_reason="stop",
    prompt_token_ids=[1, 2],
    output_token_ids=[3, 4, 5],
    request_metadata={"trace_id": "t-1", "is_final": True},
)
REFUSAL = "the default refusal"
BOUND = 60.0
PATIENT_MS = 30_000
"""An answer of many megabytes is not late because the machine is busy."""
Score = Callable[[ScoringContext], Awaitable[Any]]


class Classifier:
    def __init__(
        self, score: Score, *, name: str = "c", blocking: bool = True, timeout_ms: float = 2000
    ) -> None:
        self.name = name
        self.blocking = blocking
        self.timeout_ms = timeout_ms
        self._score = score

    async def score(self, ctx: ScoringContext) -> Any:
        return await self._score(ctx)


def answers(answer: Any) -> Score:
    async def score(ctx: ScoringContext) -> Any:
        return answer

    return score


def raises(error: BaseException) -> Score:
    async def score(ctx: ScoringContext) -> Any:
        raise error

    return score


async def forever(ctx: ScoringContext) -> Any:
    await asyncio.Event().wait()


def a_set(*classifiers: Any, max_concurrency: int = 8) -> ClassifierSet:
    settings = ClassifierSettings(refusal=REFUSAL, max_concurrency=max_concurrency)
    made = ClassifierSet(settings, model="m")
    for classifier in classifiers:
        made.register_external_classifier_hook(classifier)
    return made


async def judge(*classifiers: Any) -> Judgement:
    async with asyncio.timeout(BOUND):
        return await a_set(*classifiers).judge(CONTEXT)


# --- what a classifier is given ------------------------------------------------------------------


@pytest.mark.promise("S4-098")
async def test_a_classifier_is_given_the_whole_output_and_whose_it_is() -> None:
    seen: list[ScoringContext] = []

    async def score(ctx: ScoringContext) -> dict[str, Any]:
        seen.append(ctx)
        return {}

    await judge(Classifier(score))
    assert seen == [CONTEXT]


@pytest.mark.promise("S4-117")
async def test_what_one_classifier_writes_into_its_context_no_other_sees() -> None:
    wrote = asyncio.Event()
    seen: list[ScoringContext] = []

    async def vandal(ctx: ScoringContext) -> dict[str, Any]:
        ctx.extra_fields["tenant"]["name"] = "mallory"
        ctx.request_metadata.clear()
        ctx.prompt_token_ids.append(666)
        ctx.output_token_ids.clear()
        wrote.set()
        return {}

    async def reader(ctx: ScoringContext) -> dict[str, Any]:
        await wrote.wait()
        seen.append(ctx)
        return {}

    await judge(Classifier(vandal, name="a"), Classifier(reader, name="b"))
    assert seen[0].extra_fields == {"tenant": {"name": "acme"}}
    assert seen[0] == CONTEXT
    assert CONTEXT.output_token_ids == [3, 4, 5]


async def test_a_context_cannot_be_assigned_to() -> None:
    async def score(ctx: ScoringContext) -> dict[str, Any]:
        ctx.generated_text = "harmless"  # type: ignore[misc]
        return {}

    judgement = await judge(Classifier(score))
    assert judgement.blocked_by == "c"
    assert CONTEXT.generated_text == "a secret answer"
    with pytest.raises(dataclasses.FrozenInstanceError):
        CONTEXT.prompt = ""  # type: ignore[misc]


async def test_a_context_that_cannot_be_copied_fails_closed() -> None:
    deep: list[Any] = []
    for _ in range(sys.getrecursionlimit()):
        deep = [deep]
    context = dataclasses.replace(CONTEXT, extra_fields={"deep": deep})
    judgement = await a_set(Classifier(answers({}))).judge(context)
    assert judgement.blocked
    assert judgement.scores == {"c": {"error": "exception"}}


# --- verdicts ------------------------------------------------------------------------------------


INSTEAD = {"block": True, "replacement": "instead", "score": 0.9}
VERDICTS: dict[str, tuple[dict[str, Any], bool, str, str]] = {
    "no block lets the output pass": ({"toxicity": 0.1}, True, "", ""),
    "a replacement is shown": (INSTEAD, True, "c", "instead"),
    "without one the settings' refusal is": ({"block": 1}, True, "c", REFUSAL),
    "an empty one shows nothing at all": ({"block": True, "replacement": ""}, True, "c", ""),
    "one of an odd type is shown as plain text": (
        INSTEAD | {"replacement": LyingText("instead")}, True, "c", "instead",
    ),
    "a block of one that annotates is only noted": (INSTEAD, False, "", ""),
}  # fmt: skip
"""An answer, whether its classifier blocks, by whom the output is blocked, and what it becomes."""


@pytest.mark.promise("S4-103", "S4-104", "S4-105")
@one_case("name", VERDICTS)
async def test_a_verdict_says_whether_the_output_is_blocked_and_what_it_becomes(name: str) -> None:
    answer, blocking, blocked_by, replacement = VERDICTS[name]
    judgement = await judge(Classifier(answers(answer), blocking=blocking))
    assert (judgement.blocked, judgement.blocked_by or "") == (bool(blocked_by), blocked_by)
    assert (type(judgement.replacement), judgement.replacement) == (str, replacement)
    if "score" in answer:
        assert judgement.scores == {"c": {"block": True, "score": 0.9}}


@pytest.mark.promise("S4-106")
async def test_every_answer_is_under_its_classifiers_name() -> None:
    judgement = await judge(
        Classifier(answers({"toxicity": 0.25, "labels": ["a"]}), name="tox", blocking=False),
        Classifier(answers({"pii": {"count": 0}}), name="pii"),
    )
    assert judgement.scores == {
        "tox": {"toxicity": 0.25, "labels": ["a"]},
        "pii": {"pii": {"count": 0}},
    }


@pytest.mark.promise("S4-109")
async def test_of_two_that_block_the_one_registered_first_decides_however_late_it_is() -> None:
    second_done = asyncio.Event()

    async def first(ctx: ScoringContext) -> dict[str, Any]:
        await second_done.wait()
        return {"block": True, "replacement": "the first's"}

    async def second(ctx: ScoringContext) -> dict[str, Any]:
        second_done.set()
        return {"block": True, "replacement": "the second's"}

    judgement = await judge(Classifier(first, name="z"), Classifier(second, name="a"))
    assert judgement.blocked_by == "z"
    assert judgement.replacement == "the first's"


# --- failures ------------------------------------------------------------------------------------


FAILURES = [
    (raises(ValueError("a secret answer")), "exception"),
    (raises(SystemExit(3)), "exception"),
    (raises(KeyboardInterrupt()), "exception"),
    (raises(StopIteration()), "exception"),
    (raises(asyncio.CancelledError()), "exception"),
    (raises(ScoringError("unreachable")), "unreachable"),
    (raises(ScoringError("a secret answer!")), "exception"),
    (raises(TimeoutError()), "timeout"),
    (answers(None), "invalid_answer"),
    (answers("block"), "invalid_answer"),
    (answers({"x": object()}), "invalid_answer"),
    (answers({"x": float("nan")}), "invalid_answer"),
    (answers({"x": "\ud800"}), "invalid_answer"),
    (answers({1: 2}), "invalid_answer"),
    (answers({"x": "y" * MAX_SCORES_BYTES}), "invalid_answer"),
    (answers({"x": "y" * 20_000_000}), "invalid_answer"),
    *(
        (answers({"block": True, "replacement": replacement}), "invalid_answer")
        for replacement in (
            7,
            "\ud800",
            LyingText("\ud800"),
            "x" * (MAX_REPLACEMENT_CHARS + 1),
            LyingText("x" * (MAX_REPLACEMENT_CHARS + 1)),
        )
    ),
]


@pytest.mark.promise("S4-101", "S4-102")
@one_case(("score", "reason"), FAILURES)
async def test_a_classifier_that_fails_blocks_or_leaves_a_note_where_it_annotates(
    score: Score, reason: str
) -> None:
    judgement = await judge(Classifier(score, timeout_ms=PATIENT_MS))
    assert (judgement.blocked_by, judgement.replacement) == ("c", REFUSAL)
    assert judgement.scores == {"c": {"error": reason}}
    annotating = Classifier(score, blocking=False, timeout_ms=PATIENT_MS)
    noted = await judge(annotating, Classifier(answers({"ok": 1}), name="other"))
    assert not noted.blocked
    assert noted.scores == {"c": {"error": reason}, "other": {"ok": 1}}


async def test_a_classifier_that_cancels_itself_fails_and_no_more() -> None:
    async def score(ctx: ScoringContext) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()
        return {}

    judgement = await judge(Classifier(score), Classifier(answers({}), name="other"))
    assert judgement.blocked_by == "c"
    assert judgement.scores["other"] == {}


async def test_the_log_names_the_failure_and_never_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        await judge(Classifier(raises(ValueError("a secret answer"))))
    (record,) = caplog.records
    said = {**vars(record), "msg": record.getMessage()}
    assert said["classifier"] == "c"
    assert said["code"] == "ValueError"
    assert said["trace_id"] == "t-1"
    assert "secret" not in str(said)


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.promise("S4-099")
async def test_all_classifiers_run_at_once() -> None:
    together = asyncio.Barrier(5)

    async def score(ctx: ScoringContext) -> dict[str, Any]:
        await together.wait()  # returns only when all five are here
        return {"here": True}

    judgement = await judge(*(Classifier(score, name=f"c{place}") for place in range(5)))
    assert all(answer == {"here": True} for answer in judgement.scores.values())


@pytest.mark.promise("S4-100")
async def test_a_timeout_cancels_its_classifier_alone() -> None:
    cancelled = asyncio.Event()

    async def slow(ctx: ScoringContext) -> dict[str, Any]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return {}

    async def patient(ctx: ScoringContext) -> dict[str, Any]:
        await cancelled.wait()
        return {"score": 1}

    judgement = await judge(
        Classifier(slow, name="slow", blocking=False, timeout_ms=30),
        Classifier(patient, name="patient"),
    )
    assert judgement.scores == {"slow": {"error": "timeout"}, "patient": {"score": 1}}
    assert not judgement.blocked
    late = await judge(Classifier(forever, timeout_ms=30))
    assert (late.blocked_by, late.replacement) == ("c", REFUSAL)


async def test_a_classifier_that_will_not_be_cancelled_delays_nobody_and_keeps_its_turn() -> None:
    release = asyncio.Event()
    calls = 0

    async def stubborn(ctx: ScoringContext) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return {}

    classifiers = a_set(Classifier(stubborn, timeout_ms=30), max_concurrency=1)
    (runner,) = classifiers.runners
    async with asyncio.timeout(BOUND):
        for _ in range(3):
            assert (await classifiers.judge(CONTEXT)).blocked
        assert calls == 1  # the others waited for a turn that never came
        assert runner.counters.running == 1
        release.set()
        await classifiers.shutdown()
        assert runner.counters.running == 0
        assert not (await classifiers.judge(CONTEXT)).blocked


async def test_there_are_never_more_calls_than_max_concurrency_and_each_gets_its_turn() -> None:
    now = most = 0

    async def score(ctx: ScoringContext) -> dict[str, Any]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return {}

    classifiers = a_set(Classifier(score), max_concurrency=3)
    async with asyncio.timeout(BOUND):
        judgements = await asyncio.gather(*(classifiers.judge(CONTEXT) for _ in range(50)))
    assert most == 3
    assert not any(judgement.blocked for judgement in judgements)


async def test_the_wait_for_a_turn_counts_into_the_timeout() -> None:
    freed = asyncio.Event()
    asked = 0

    async def keeps_its_turn(ctx: ScoringContext) -> Any:
        nonlocal asked
        asked += 1
        while not freed.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await freed.wait()

    classifiers = a_set(Classifier(keeps_its_turn, timeout_ms=60), max_concurrency=1)
    async with asyncio.timeout(BOUND):
        first, second = await asyncio.gather(classifiers.judge(CONTEXT), classifiers.judge(CONTEXT))
    assert first.blocked
    assert second.blocked
    assert asked == 1
    freed.set()
    await classifiers.shutdown()


async def test_one_classifiers_queue_is_not_anothers() -> None:
    classifiers = a_set(
        Classifier(forever, name="slow", blocking=False, timeout_ms=100),
        Classifier(answers({}), name="quick"),
        max_concurrency=1,
    )
    async with asyncio.timeout(BOUND):
        judgements = await asyncio.gather(*(classifiers.judge(CONTEXT) for _ in range(5)))
    assert not any(judgement.blocked for judgement in judgements)


@pytest.mark.promise("S4-115")
async def test_cancelling_a_judgement_cancels_every_classifier() -> None:
    started, ended = asyncio.Barrier(3), asyncio.Barrier(3)

    async def score(ctx: ScoringContext) -> dict[str, Any]:
        await started.wait()
        try:
            await asyncio.Event().wait()
        finally:
            await ended.wait()
        return {}

    classifiers = a_set(Classifier(score, name="a"), Classifier(score, name="b", blocking=False))
    async with asyncio.timeout(BOUND), asyncio.TaskGroup() as tasks:
        judging = tasks.create_task(classifiers.judge(CONTEXT))
        await started.wait()
        judging.cancel()
        await ended.wait()
    assert judging.cancelled()
    assert [runner.counters.verdicts["cancelled"] for runner in classifiers.runners] == [1, 1]


# --- registration --------------------------------------------------------------------------------


def _synchronous(ctx: ScoringContext) -> dict[str, Any]:
    return {}


async def _without_context() -> dict[str, Any]:
    return {}


@pytest.mark.promise("S4-116")
@one_case(
    ("name", "value", "says"),
    [
        ("score", _synchronous, r"'c'.*must be async"),
        ("score", _without_context, "must take the context alone"),
        ("score", None, "no method score"),
        ("name", "", "needs a name"),
        ("name", 7, "needs a name"),
        ("blocking", "yes", "blocking must be true or false"),
        ("timeout_ms", 0, "timeout_ms must be above 0"),
        ("timeout_ms", "1s", "timeout_ms must be above 0"),
        ("timeout_ms", float("inf"), "timeout_ms must be above 0"),
    ],
)
def test_a_classifier_that_cannot_be_one_is_refused(name: str, value: Any, says: str) -> None:
    classifier = Classifier(answers({}))
    setattr(classifier, name, value)
    with pytest.raises(LoadError, match=says):
        a_set(classifier)


@pytest.mark.promise("S4-108")
def test_two_classifiers_of_one_name_are_refused() -> None:
    with pytest.raises(LoadError, match="two classifiers named 'same'"):
        a_set(Classifier(answers({}), name="same"), Classifier(answers({}), name="same"))


async def test_an_object_with_an_async_call_is_a_score() -> None:
    class Callable_:
        async def __call__(self, ctx: ScoringContext) -> dict[str, Any]:
            return {"ok": True}

    classifier = Classifier(answers({}))
    classifier.score = Callable_()  # type: ignore[method-assign]
    assert (await judge(classifier)).scores == {"c": {"ok": True}}


async def test_startup_and_shutdown_run_in_order_and_may_be_plain_or_async() -> None:
    did: list[str] = []

    class First(Classifier):
        def startup(self) -> None:
            did.append("first up")

        async def shutdown(self) -> None:
            did.append("first down")

    class Second(Classifier):
        async def startup(self) -> None:
            did.append("second up")

        def shutdown(self) -> None:
            did.append("second down")
            raise RuntimeError

    classifiers = a_set(First(answers({}), name="1"), Second(answers({}), name="2"))
    await classifiers.startup()
    await classifiers.shutdown()
    assert did == ["first up", "second up", "second down", "first down"]


async def test_a_startup_that_raises_stops_the_worker() -> None:
    class Broken(Classifier):
        def startup(self) -> None:
            raise RuntimeError("no model")

    with pytest.raises(LoadError, match=r"'c': its startup raised RuntimeError: no model"):
        await a_set(Broken(answers({}))).startup()


# --- counts --------------------------------------------------------------------------------------


@pytest.mark.promise("S4-120")
async def test_calls_verdicts_and_times_are_exported_for_each_classifier() -> None:
    flaky = iter([answers({"block": True}), answers({}), raises(ValueError()), forever])

    async def score(ctx: ScoringContext) -> Any:
        return await next(flaky)(ctx)

    classifiers = a_set(
        Classifier(score, name="b", timeout_ms=50),
        Classifier(answers({"block": True}), name="a", blocking=False),
    )
    for _ in range(4):
        await classifiers.judge(CONTEXT)
    blocking, annotating = (runner.counters for runner in classifiers.runners)
    assert blocking.verdicts == {
        "pass": 1, "block": 1, "annotate": 0, "error": 1, "timeout": 1, "cancelled": 0,
    }  # fmt: skip
    assert annotating.verdicts["annotate"] == annotating.calls == 4
    assert blocking.calls == sum(blocking.seconds.counts) == 4
    assert len(blocking.seconds.counts) == len(CLASSIFIER_SECONDS) + 1
    assert blocking.seconds.total >= 0.05
    assert blocking.running == 0
    counters = {runner.name: runner.counters for runner in classifiers.runners}
    exported = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in classifier_metrics("decode", counters)
        for sample in metric.samples
    }
    for verdict in ("pass", "block", "error", "timeout"):
        assert exported["tandem_classifier_verdicts_total", "decode", "b", verdict] == 1
    assert exported["tandem_classifier_seconds_count", "decode", "a"] == 4
    assert exported["tandem_classifier_seconds_sum", "decode", "b"] == blocking.seconds.total
