"""What decode decides once classifiers judge: what waits, what is replaced, what is made again."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worker_harness import MODEL, TRACE, Bench, delta, ids_of, terminate_at, with_logprobs

from tandem import canary
from tandem.engine.base import Ending, EngineRequest
from tandem.errors import HookError
from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.hooks.classifiers.settings import (
    ClassifierSettings,
    RegenerateSettings,
    Resampling,
)
from tandem.hooks.contract import emit
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker import halves
from tandem.worker.classifying import Classifying
from tandem.worker.config import WorkerConfig
from tandem.worker.phase import PhaseParts
from tandem_decode_worker.rules import DecodeRules, load_phase

PATIENCE = 60.0
PASS = Judgement(decisions={"c": "pass"}, scores={"c": {"risk": 0.1}})
BLOCK = Judgement(
    blocked_by="c", replacement="I may not.", decisions={"c": "block"}, scores={"c": {"risk": 1}}
)
FAILED = Judgement(blocked_by="c", replacement="I may not.", decisions={"c": "error"})


class Scorer:
    """A classifier that keeps what it was given."""

    name = "c"
    timeout_ms = 5_000

    def __init__(self, *, blocking: bool = True, answer: Any = None) -> None:
        self.blocking = blocking
        self.given: list[ScoringContext] = []
        self._answer = {"block": False} if answer is None else answer

    async def score(self, ctx: ScoringContext) -> dict[str, Any]:
        self.given.append(ctx)
        if isinstance(self._answer, Exception):
            raise self._answer
        answer: dict[str, Any] = self._answer
        return answer


def classifiers_of(scorer: Scorer, **settings: Any) -> ClassifierSet:
    made = ClassifierSet(ClassifierSettings(**settings), model="m")
    made.register_external_classifier_hook(scorer)
    return made


class Asked:
    """Classifiers that answer when the test says what."""

    audit = None
    counters: Mapping[str, Any] = {}
    reads_text, reads_logprobs = True, False

    def __init__(self) -> None:
        self.questions: list[tuple[int, Question, str]] = []
        self.open_sequences: set[int] = set()
        self.fails: Exception | None = None

    async def start(self, deliver: Callable[[int, Judgement], None]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def open(self, request: EngineRequest, task: common_pb2.Task, *, output_index: int) -> None:
        self.open_sequences.add(request.request_id)

    def ask(self, request_id: int, question: Question, *, finish_reason: str) -> None:
        if self.fails is not None:
            raise self.fails
        self.questions.append((request_id, question, finish_reason))

    def record(self, request_id: int, judgement: Judgement) -> str:
        if self.fails is not None:
            raise self.fails
        return json.dumps(judgement.scores)

    def over(self, request_id: int) -> None:
        self.open_sequences.discard(request_id)


def bench_of(
    tokenizer: Tokenizer, *, blocking: bool = True, hook: bool = True, **settings: Any
) -> tuple[Bench, Asked]:
    rules = DecodeRules(classifiers_of(Scorer(blocking=blocking), **settings))
    asked = Asked()
    return Bench(tokenizer, hook=hook, parts=PhaseParts(rules, asked)), asked


@pytest.mark.parametrize("hook", [False, True])
def test_the_last_chunk_waits_for_the_judgement_and_then_comes_with_its_scores(
    tokenizer: Tokenizer, hook: bool
) -> None:
    bench, asked = bench_of(tokenizer, hook=hook)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "shown")))
    said = bench.step(delta(request, ids_of(tokenizer, " last"), Ending.LENGTH))
    assert said.text(101) == "shown"
    assert said.of(1, "closed") == []
    ((asked_of, question, finish_reason),) = asked.questions
    assert (asked_of, question.text, question.is_final) == (request, "shown last", True)
    assert finish_reason == "length"
    bench.shell.on_judgement(request, PASS)
    said = bench.take()
    assert said.text(101) == "shown last"
    (finish,) = said.finishes(101)
    assert json.loads(finish.external_scores) == {"c": {"risk": 0.1}}
    assert not finish.withheld
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert asked.open_sequences == set()
    assert bench.engine.cancelled == []


def test_a_block_replaces_what_was_not_shown_and_names_the_classifier(
    tokenizer: Tokenizer,
) -> None:
    bench, _ = bench_of(tokenizer, hold_back="all")
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "very bad"), Ending.LENGTH))
    bench.shell.on_judgement(request, BLOCK)
    said = bench.take()
    assert said.text(101) == "I may not."
    assert said.token_ids(101) == []
    (finish,) = said.finishes(101)
    assert (finish.stop_reason, finish.withheld) == ("c", True)


def test_a_block_in_the_middle_stops_the_engine(tokenizer: Tokenizer) -> None:
    bench, asked = bench_of(tokenizer, hold_back="window", window_tokens=1)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "bad")))
    assert not asked.questions[0][1].is_final
    bench.shell.on_judgement(request, BLOCK)
    assert bench.engine.cancelled == [request]
    said = bench.settle()
    assert said.text(101) == "I may not."
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED


def test_what_a_hook_terminated_is_judged_before_it_ends(tokenizer: Tokenizer) -> None:
    bench, asked = bench_of(tokenizer)
    bench.hook.judge = terminate_at(2)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "a")))
    bench.step(delta(request, ids_of(tokenizer, "b")))
    assert bench.engine.cancelled == [request]
    bench.settle()
    ((_, question, _),) = asked.questions
    assert (question.text, question.is_final) == ("a", True)
    bench.shell.on_judgement(request, PASS)
    assert bench.take().closed(1).outcome == worker_pb2.LegClosed.OUTCOME_TERMINATED


@pytest.mark.promise("S0-029")
def test_the_router_learns_of_a_terminate_also_where_its_output_ends_otherwise(
    tokenizer: Tokenizer,
) -> None:
    """The siblings are silent from then on, and only the router can end them."""
    bench, _ = bench_of(tokenizer)
    bench.hook.judge = terminate_at(1, request_id=1)
    request, sibling = bench.start(1), bench.start(2, output_index=1)
    ids = ids_of(tokenizer, "one")
    bench.step(delta(request, ids), delta(sibling, ids))
    said = bench.settle()
    (told,) = said.of(1, "verdict")
    assert (told.terminate, told.reason) == (True, "guard")
    bench.cancel(1, "prefill failed")
    assert bench.settle().closed(1).outcome == worker_pb2.LegClosed.OUTCOME_CANCELLED


def test_rulings_on_several_steps_that_come_together_are_judged_as_one_whole(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bench, "hooks_run", "later")
    bench, asked = bench_of(tokenizer, hold_back="all")
    request = bench.start()
    for word, end in (("one ", None), ("two ", None), ("three", Ending.LENGTH)):
        step = bench.engine.note([delta(request, ids_of(tokenizer, word), end)])
        bench.shell.on_step(step)
    assert bench.later is not None
    bench.shell.on_rulings(bench.later.rulings())
    assert [question.text for _, question, _ in asked.questions] == ["one two three"]


@pytest.mark.promise("S4-119")
def test_an_output_that_was_cancelled_is_not_judged(tokenizer: Tokenizer) -> None:
    bench, asked = bench_of(tokenizer)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "a")))
    bench.cancel(1, "client")
    bench.shell.on_judgement(request, BLOCK)
    bench.settle()
    bench.shell.on_judgement(request, BLOCK)
    assert asked.questions == []
    assert bench.said.text(101) == "a"
    assert asked.open_sequences == set()
    assert bench.take().finishes(101) == []


@pytest.mark.promise("S4-119")
@pytest.mark.parametrize("hold_back", ["none", "all"])
def test_an_output_that_a_hook_failed_is_not_judged(tokenizer: Tokenizer, hold_back: str) -> None:
    bench, asked = bench_of(tokenizer, hold_back=hold_back)
    bench.hook.judge = lambda chunk: 1 / 0  # type: ignore[assignment, return-value]
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "a"), Ending.LENGTH))
    assert bench.settle().closed(1).error.code == "hook_failed"
    assert (asked.questions, bench.said.rows(101)) == ([], [])


@pytest.mark.promise("S4-118")
def test_a_classifier_sees_what_the_hooks_let_through(tokenizer: Tokenizer) -> None:
    bench, asked = bench_of(tokenizer, hold_back="all")
    bench.hook.judge = lambda chunk: emit(chunk.text_diff.upper())
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "loud"), Ending.LENGTH))
    ((_, question, _),) = asked.questions
    bench.shell.on_judgement(request, PASS)
    assert question.text == bench.take().text(101) == "LOUD"


@pytest.mark.promise("S4-114")
def test_each_of_n_outputs_is_judged_once(tokenizer: Tokenizer) -> None:
    bench, asked = bench_of(tokenizer)
    requests = [bench.start(number, output_index=number - 1) for number in (1, 2, 3)]
    ids = ids_of(tokenizer, "a")
    bench.step(*(delta(request, ids) for request in requests))
    bench.step(*(delta(request, ids, Ending.LENGTH) for request in requests))
    assert [request for request, _, _ in asked.questions] == requests


def test_a_judgement_that_comes_after_a_cancel_shows_nothing(tokenizer: Tokenizer) -> None:
    bench, asked = bench_of(tokenizer, hold_back="window", window_tokens=1)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "a")))
    assert len(asked.questions) == 1
    bench.cancel(1, "client")
    bench.shell.on_judgement(request, PASS)
    assert bench.settle().rows(101) == []


# --- making it again ------------------------------------------------------------------------------

AGAIN = RegenerateSettings(times=2, temperature=0.5)


@pytest.mark.parametrize(
    ("judgement", "made_before", "again"),
    [(BLOCK, 0, True), (BLOCK, 1, True), (BLOCK, 2, False), (FAILED, 0, False), (PASS, 0, False)],
)
def test_a_blocked_output_is_made_again_as_often_as_the_settings_say(
    tokenizer: Tokenizer, judgement: Judgement, made_before: int, again: bool
) -> None:
    bench, _ = bench_of(tokenizer, hold_back="all", regenerate=AGAIN)
    spent = common_pb2.Regeneration(count=made_before, spent_tokens=10 * made_before)
    request = bench.start(task={"regeneration": spent})
    ids = ids_of(tokenizer, "bad words")
    bench.step(delta(request, ids, Ending.LENGTH))
    bench.shell.on_judgement(request, judgement)
    said = bench.take()
    closed = said.closed(1)
    assert (closed.outcome == worker_pb2.LegClosed.OUTCOME_REGENERATE) is again
    assert (said.finishes(101) == []) is again
    if again:
        assert said.rows(101) == []
        overlay = common_pb2.Task.FromString(closed.overlay).regeneration
        assert (overlay.count, overlay.spent_tokens) == (
            made_before + 1,
            10 * made_before + len(ids),
        )
        assert overlay.temperature == 0.5
        assert not overlay.HasField("top_p")


def test_a_second_half_is_not_made_again(tokenizer: Tokenizer) -> None:
    bench, _ = bench_of(tokenizer, hold_back="all", regenerate=AGAIN)
    task = common_pb2.Task.FromString(bench.command(1).task)
    digest = halves.digest(task, array("I", task.prompt_token_ids))
    request = bench.start(task_digest=digest)
    bench.step(delta(request, ids_of(tokenizer, "bad words"), Ending.LENGTH))
    bench.shell.on_judgement(request, BLOCK)
    said = bench.take()
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert said.finishes(101)[0].withheld


def test_what_a_hook_terminated_is_not_made_again(tokenizer: Tokenizer) -> None:
    bench, _ = bench_of(tokenizer, hold_back="all", regenerate=AGAIN)
    bench.hook.judge = terminate_at(1)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "bad"), Ending.LENGTH))
    bench.shell.on_judgement(request, BLOCK)
    assert bench.take().closed(1).outcome == worker_pb2.LegClosed.OUTCOME_TERMINATED


def test_a_run_that_samples_otherwise_does_so_in_the_engine(tokenizer: Tokenizer) -> None:
    bench, _ = bench_of(tokenizer)
    again = common_pb2.Regeneration(count=1, temperature=0.25)
    bench.start(task={"regeneration": again}, temperature=1.0, seed=7)
    sampling = bench.engine.submitted[0].sampling
    assert sampling.temperature == 0.25
    assert sampling.seed != 7


@pytest.mark.promise("S4-128")
def test_a_seed_that_a_run_is_given_is_sampled_with_as_a_clients_would_be(
    tokenizer: Tokenizer,
) -> None:
    bench, _ = bench_of(tokenizer)
    again = common_pb2.Regeneration(count=2, seed=40, repetition_penalty=1.5)
    bench.start(task={"regeneration": again}, output_index=2, seed=7)
    sampling = bench.engine.submitted[0].sampling
    assert (sampling.seed, sampling.repetition_penalty) == (42, 1.5)


@pytest.mark.promise("S4-128")
@pytest.mark.parametrize(
    ("when", "asked", "again"),
    [
        ("blocked", None, True),
        ("blocked", True, True),
        ("blocked", False, False),
        ("asked", None, False),
        ("asked", True, True),
    ],
)
def test_the_classifier_that_blocks_says_whether_and_how_it_is_made_again(
    tokenizer: Tokenizer, when: Any, asked: bool | None, again: bool
) -> None:
    settings = RegenerateSettings(when=when, temperature=0.5, top_p=0.5)
    bench, _ = bench_of(tokenizer, hold_back="all", regenerate=settings)
    request = bench.start()
    bench.step(delta(request, ids_of(tokenizer, "bad"), Ending.LENGTH))
    sampling = Resampling(temperature=0, seed=3)
    bench.shell.on_judgement(request, replace(BLOCK, regenerate=asked, sampling=sampling))
    closed = bench.take().closed(1)
    assert (closed.outcome == worker_pb2.LegClosed.OUTCOME_REGENERATE) is again
    if again:
        made = common_pb2.Task.FromString(closed.overlay).regeneration
        assert (made.temperature, made.top_p, made.seed) == (0, 0.5, 3)
        assert made.HasField("temperature")


# --- log-probabilities ----------------------------------------------------------------------------


@pytest.mark.promise("S4-127")
@pytest.mark.parametrize("shown", [False, True])
def test_classifiers_are_given_log_probabilities_that_the_client_sees_only_where_it_asks(
    tokenizer: Tokenizer, shown: bool
) -> None:
    bench, asked = bench_of(tokenizer, hold_back="all", logprobs=True)
    request = bench.start(say_logprobs=True, **({"logprobs": 0} if shown else {}))
    assert bench.engine.submitted[0].sampling.HasField("logprobs")
    ids = ids_of(tokenizer, "a word")
    bench.step(with_logprobs(request, ids, Ending.LENGTH))
    ((_, question, _),) = asked.questions
    assert question.logprobs == [-0.5 * token_id for token_id in ids]
    bench.shell.on_judgement(request, PASS)
    assert bool(bench.take().logprobs(101)) is shown
    assert bench.said.text(101) == "a word"


@pytest.mark.promise("S4-127")
def test_an_engine_that_gives_classifiers_no_log_probabilities_fails_its_leg_closed(
    tokenizer: Tokenizer,
) -> None:
    bench, asked = bench_of(tokenizer, hold_back="all", logprobs=True)
    request = bench.start(say_logprobs=True)
    bench.step(delta(request, ids_of(tokenizer, "a"), Ending.LENGTH))
    assert bench.take().closed(1).error.code == "internal_error"
    assert (bench.said.rows(101), asked.questions) == ([], [])


def test_nobody_pays_for_log_probabilities_that_nobody_wants(tokenizer: Tokenizer) -> None:
    bench, asked = bench_of(tokenizer, hold_back="all")
    request = bench.start()
    assert not bench.engine.submitted[0].sampling.HasField("logprobs")
    bench.step(delta(request, ids_of(tokenizer, "a"), Ending.LENGTH))
    assert asked.questions[0][1].logprobs == []


# --- replacements ---------------------------------------------------------------------------------


@pytest.mark.promise("S4-124")
def test_clients_of_token_ids_have_the_replacements_text_and_no_other(
    tokenizer: Tokenizer,
) -> None:
    bench, _ = bench_of(tokenizer, hold_back="window", window_tokens=1)
    request = bench.start(task={"want_text": False, "want_token_ids": True})
    ids = ids_of(tokenizer, "shown")
    bench.step(delta(request, ids))
    bench.shell.on_judgement(request, PASS)
    bench.step(delta(request, ids_of(tokenizer, "bad"), Ending.LENGTH))
    bench.shell.on_judgement(request, BLOCK)
    said = bench.take()
    assert (said.text(101), said.token_ids(101)) == ("I may not.", ids)


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [HookError("the audit log is full"), RuntimeError("own words")])
@pytest.mark.parametrize("at", ["ask", "record"])
def test_classifiers_that_cannot_be_asked_or_recorded_fail_their_leg_closed(
    tokenizer: Tokenizer, error: Exception, at: str
) -> None:
    bench, asked = bench_of(tokenizer, hold_back="all")
    other, request = bench.start(1), bench.start(2)
    if at == "ask":
        asked.fails = error
    bench.step(delta(request, ids_of(tokenizer, "a"), Ending.LENGTH))
    asked.fails = error
    bench.shell.on_judgement(request, PASS)
    asked.fails = None
    closed = bench.take().closed(2)
    assert closed.error.code == "hook_failed"
    assert "own words" not in closed.error.message
    assert bench.said.rows(102) == []
    bench.step(delta(other, ids_of(tokenizer, "b"), Ending.LENGTH))
    bench.shell.on_judgement(other, PASS)
    assert bench.take().closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED


async def _judged(
    tokenizer: Tokenizer, scorer: Scorer, **task: Any
) -> tuple[Classifying, Judgement]:
    """By real classifiers, of the output "abc"."""
    classifying = Classifying(classifiers_of(scorer), tokenizer)
    arrived: asyncio.Queue[Judgement] = asyncio.Queue()
    await classifying.start(lambda request_id, judgement: arrived.put_nowait(judgement))
    fields: dict[str, Any] = {
        "trace_id": TRACE,
        "model": "m",
        "metadata": {"tenant": "t"},
        "extra_fields": '{"policy": {"strict": [true]}}',
    }
    request = EngineRequest(request_id=3, token_ids=[10, 11], sampling=common_pb2.SamplingParams())
    classifying.open(request, common_pb2.Task(**fields | task), output_index=1)
    question = Question(text="abc", token_ids=[5], shown_chars=0, is_final=True)
    classifying.ask(3, question, finish_reason="stop")
    async with asyncio.timeout(PATIENCE):
        judgement = await arrived.get()
    return classifying, judgement


@pytest.mark.promise("S4-098", "S4-123")
async def test_a_classifier_is_told_whose_output_it_judges(tokenizer: Tokenizer) -> None:
    scorer = Scorer()
    classifying, _ = await _judged(tokenizer, scorer)
    (given,) = scorer.given
    assert (given.generated_text, given.output_token_ids) == ("abc", [5])
    assert (given.request_id, given.finish_reason) == ("3", "stop")
    assert given.prompt == tokenizer.decode([10, 11])
    assert given.extra_fields == {"policy": {"strict": [True]}}
    assert given.request_metadata["metadata"] == {"tenant": "t"}
    assert given.request_metadata["output_index"] == 1
    await classifying.close()


@pytest.mark.promise("S4-121")
async def test_an_output_is_judged_by_those_that_were_registered_when_it_began(
    tokenizer: Tokenizer,
) -> None:
    first, late = Scorer(), Scorer()
    late.name = "late"  # type: ignore[misc]
    classifiers = classifiers_of(first)
    classifying = Classifying(classifiers, tokenizer)
    arrived: asyncio.Queue[Judgement] = asyncio.Queue()
    await classifying.start(lambda request_id, judgement: arrived.put_nowait(judgement))
    task = common_pb2.Task(trace_id=TRACE, model="m")
    question = Question(text="abc", token_ids=[5], shown_chars=0, is_final=True)
    names = []
    for number in (1, 2):
        asked = EngineRequest(
            request_id=number, token_ids=[10], sampling=common_pb2.SamplingParams()
        )
        classifying.open(asked, task, output_index=0)
        if number == 1:
            classifiers.register_external_classifier_hook(late)
        classifying.ask(number, question, finish_reason="stop")
        async with asyncio.timeout(PATIENCE):
            names.append([*(await arrived.get()).scores])
    assert names == [["c"], ["c", "late"]]
    await classifying.close()


@pytest.mark.promise("S4-107")
@pytest.mark.parametrize("wanted", [False, True])
async def test_scores_are_told_to_those_who_asked_for_them(
    tokenizer: Tokenizer, wanted: bool
) -> None:
    scorer = Scorer(answer={"block": False, "risk": 0.5})
    classifying, judgement = await _judged(tokenizer, scorer, want_external_scores=wanted)
    scores = classifying.record(3, judgement)
    assert (json.loads(scores)["c"]["risk"] == 0.5) if wanted else scores == ""
    classifying.over(3)
    with pytest.raises(KeyError):
        classifying.record(3, judgement)
    await classifying.close()


def test_a_decode_worker_without_classifiers_guards_nothing(
    tokenizer: Tokenizer, model_path: Path
) -> None:
    parts = load_phase(WorkerConfig(model_path=model_path), tokenizer)
    assert parts.classifiers is None
    assert parts.rules.guard(streaming=True) is None


@pytest.mark.promise("S6-189")
def test_what_classifiers_hold_counts_and_is_given_back_with_their_judgement(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, _ = bench_of(tokenizer, hook=False, hold_back="all")
    bench.core.budget.limit = 10_000_000
    monkeypatch.setattr("tandem.worker.core.shows.FRAME_BYTES", 1_000)
    request = bench.start(1)
    tasks = bench.core.budget.held
    bench.step(delta(request, [20] * 100))
    assert bench.core.budget.held == tasks + 100 * 300
    bench.step(delta(request, [21], Ending.LENGTH))
    bench.shell.on_judgement(request, Judgement())
    bench.take()
    assert bench.said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert bench.core.budget.held == 0
    too_long, other = bench.start(2), bench.start(3)
    bench.core.budget.limit = bench.core.budget.held + 100_000
    bench.step(delta(other, [20] * 100))
    bench.step(delta(too_long, [20] * 300))
    assert bench.settle().closed(2).error.code == "worker_error"
    assert bench.leg(other) is not None


@pytest.mark.promise("S5-261")
@pytest.mark.parametrize("hook", [False, True])
def test_no_classifier_hears_of_a_canary(tokenizer: Tokenizer, hook: bool) -> None:
    bench, asked = bench_of(tokenizer, hook=hook, hold_back="all")
    task = canary.task(TRACE, MODEL, 2048).SerializeToString()
    start = worker_pb2.StartLeg(
        leg=1, sequence=1, room=9, kv_peer="k:1", timeout_ms=9000, task=task, canary=True
    )
    bench.shell.command(bench.link, worker_pb2.WorkerCommand(start=[start]))
    assert asked.open_sequences == set()
    said = bench.step(delta(bench.engine.submitted[-1].request_id, [5, 6], Ending.LENGTH))
    assert said.closed(1).outcome == worker_pb2.LegClosed.OUTCOME_FINISHED
    assert asked.questions == []
