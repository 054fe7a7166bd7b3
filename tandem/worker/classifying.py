"""A worker's classifiers: what each sequence's guard needs, and the judgements that run."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tandem.engine.base import EngineRequest
from tandem.hooks.audit import AuditLog
from tandem.hooks.audit import parse as parse_audit
from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.judgements import Judgements
from tandem.hooks.classifiers.sequence_guard import Question, SequenceGuard
from tandem.hooks.classifiers.settings import parse
from tandem.hooks.classifiers.tally import ClassifierTally
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2
from tandem.worker.config import WorkerConfig

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
"""What a regeneration may set otherwise."""


@dataclass(slots=True)
class Guarded:
    """One sequence on its way past the classifiers."""

    guard: SequenceGuard
    request: EngineRequest
    task: common_pb2.Task
    output_index: int
    context: ScoringContext | None = None
    question: Question | None = None
    judgement: Judgement | None = None
    """The last ones."""

    @property
    def wanted_scores(self) -> str:
        """External scores as JSON, where the client asked for them; else empty."""
        if self.judgement is None or not self.task.want_external_scores:
            return ""
        return json.dumps(self.judgement.scores, ensure_ascii=False)


class Classifying:
    """Runs where sequences end: in a decode worker."""

    def __init__(
        self, classifiers: ClassifierSet, tokenizer: Tokenizer, audit: AuditLog | None = None
    ) -> None:
        self._classifiers = classifiers
        self._tokenizer = tokenizer
        self.audit = audit
        """Where judgements are written down; None: nowhere."""
        self._judgements = Judgements(classifiers, self._judged)
        self._deliver: Callable[[int, Judgement], None] | None = None

    @classmethod
    def load(cls, config: WorkerConfig, tokenizer: Tokenizer) -> Classifying | None:
        """None: there is no classifier. Raises ConfigError or LoadError."""
        model = config.model_name()
        classifiers = ClassifierSet.build(parse(config.classifiers), model=model)
        if not len(classifiers):
            return None
        settings = parse_audit(config.audit)
        name = config.worker_name("decode")
        audit = None if settings is None else AuditLog(settings, worker=name, model=model)
        return cls(classifiers, tokenizer, audit)

    @property
    def tallies(self) -> dict[str, ClassifierTally]:
        """By the classifiers' names."""
        return {runner.name: runner.tally for runner in self._classifiers.runners}

    async def start(self, deliver: Callable[[int, Judgement], None]) -> None:
        """`deliver` gets request_id and judgement. Raises ConfigError or LoadError."""
        self._deliver = deliver
        if self.audit is not None:
            self.audit.start()
        await self._classifiers.startup()

    async def close(self) -> None:
        """In bounded time."""
        await self._judgements.close()
        await self._classifiers.shutdown()
        if self.audit is not None:
            self.audit.close()

    def guard(self, request: EngineRequest, task: common_pb2.Task, *, output_index: int) -> Guarded:
        """For one sequence."""
        settings = self._classifiers.settings
        guard = SequenceGuard(
            hold_back=settings.hold_back,
            window_tokens=settings.window_tokens,
            blocks=self._classifiers.blocks,
            streaming=task.streaming,
        )
        return Guarded(guard, request, task, output_index)

    def ask(self, guarded: Guarded, question: Question, *, finish_reason: str) -> None:
        """Begin a judgement; it is delivered unless it is cancelled."""
        guarded.question = question
        context = question.context(self._context(guarded), finish_reason=finish_reason)
        self._judgements.ask(guarded.request.request_id, context)

    def regeneration(
        self, guarded: Guarded, judgement: Judgement
    ) -> common_pb2.Regeneration | None:
        """How to run the sequence again, where the settings have it so for an output that was
        judged and blocked. A classifier that failed would fail again.
        """
        wanted, task = self._classifiers.settings.regenerate, guarded.task
        if wanted is None or not judgement.blocked or judgement.failed:
            return None
        if task.regeneration.count >= wanted.times:
            return None
        again = common_pb2.Regeneration(count=task.regeneration.count + 1)
        for name in SAMPLING:
            if (value := getattr(wanted, name)) is not None:
                setattr(again, name, value)
        return again

    def write_down(self, guarded: Guarded, judgement: Judgement) -> None:
        """In the audit log. Raises HookError where it must take every record and cannot."""
        question = guarded.question
        if self.audit is None or question is None:
            return
        shown = judgement.replacement if judgement.blocked else question.text
        for name, decision in judgement.decisions.items():
            self.audit.record(
                phase="decode",
                trace_id=guarded.task.trace_id,
                request_id=guarded.request.request_id,
                output_index=guarded.output_index,
                hook=name,
                decision="emit" if decision == "pass" else decision,
                reason="",
                text_before=question.text,
                text_after=shown,
                token_count=len(question.token_ids),
            )

    def cancel(self, request_id: int) -> None:
        """The sequence is over (S4-115). Unknown: no effect."""
        self._judgements.cancel(request_id)

    def _judged(self, key: Hashable, judgement: Judgement) -> None:
        if self._deliver is not None and isinstance(key, int):
            self._deliver(key, judgement)

    def _context(self, guarded: Guarded) -> ScoringContext:
        """What stays the same in all of a sequence's windows; made once."""
        if guarded.context is None:
            guarded.context = self._new_context(guarded)
        return guarded.context

    def _new_context(self, guarded: Guarded) -> ScoringContext:
        request, task = guarded.request, guarded.task
        return ScoringContext(
            request_id=str(request.request_id),
            prompt=task.prompt_text or self._tokenizer.decode(request.token_ids),
            generated_text="",
            extra_fields=dict(task.metadata),
            prompt_token_ids=list(request.token_ids),
            request_metadata={
                "trace_id": task.trace_id,
                "model": task.model,
                "phase": "decode",
                "output_index": guarded.output_index,
                "streaming": task.streaming,
                "regeneration": task.regeneration.count,
            },
        )
