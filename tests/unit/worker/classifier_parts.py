"""Classifiers of a decode worker: real ones that keep what they are given, and a stand-in for the
worker's side of them that answers when its test says what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from worker_harness import Bench

from tandem.engine.base import EngineRequest
from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.hooks.classifiers.settings import ClassifierSettings
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2
from tandem.worker.phase import PhaseParts
from tandem_decode_worker.rules import DecodeRules

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
    tokenizer: Tokenizer,
    *,
    kind: type[Bench] = Bench,
    phase: str = "decode",
    hook: bool = True,
    **settings: Any,
) -> tuple[Bench, Asked]:
    """A decode worker whose classifiers, of these settings, are the stand-in."""
    assert phase == "decode"
    rules, asked = DecodeRules(classifiers_of(Scorer(), **settings)), Asked()
    return kind(tokenizer, hook=hook, parts=PhaseParts(rules, asked)), asked
