"""What decode decides once classifiers judge, beside worker_traces/classifiers.txt."""

from __future__ import annotations

import asyncio
import json
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from classifier_parts import BLOCK, PASS, Scorer, bench_of, classifiers_of
from worker_harness import TRACE, delta, ids_of

from tandem.engine.base import Ending, EngineRequest
from tandem.errors import HookError
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.hooks.classifiers.settings import (
    RegenerateSettings,
    Resampling,
)
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2, worker_pb2
from tandem.worker import halves
from tandem.worker.classifying import Classifying
from tandem.worker.config import WorkerConfig
from tandem_decode_worker.rules import load_phase

PATIENCE = 60.0


AGAIN = RegenerateSettings(times=2, temperature=0.5)


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
