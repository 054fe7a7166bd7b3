"""The classifiers of a worker: what they are told of each sequence, and the judgements that run."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from tandem import extra_fields
from tandem.engine.base import EngineRequest
from tandem.hooks.audit import AuditLog, Decided
from tandem.hooks.classifiers.classifier_set import ClassifierSet, Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.counters import ClassifierCounters
from tandem.hooks.classifiers.judgements import Judgements
from tandem.hooks.classifiers.runner import ClassifierRunner
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2


@dataclass(slots=True)
class Guarded:
    """One sequence, with the facts and the classifiers by which decode judges it."""

    request: EngineRequest
    task: common_pb2.Task
    output_index: int
    runners: Sequence[ClassifierRunner]
    """Classifiers that judge the sequence: those that were registered when it began."""
    context: ScoringContext | None = None
    """What stays the same in all of its windows; made with the first."""
    question: Question | None = None
    """The last one."""


class Classifying:
    """Runs the classifiers of decode's outputs, which are judged whole while the worker goes on."""

    def __init__(
        self, classifiers: ClassifierSet, tokenizer: Tokenizer, audit: AuditLog | None = None
    ) -> None:
        """`audit`: where judgements are written down; None: nowhere."""
        self._classifiers = classifiers
        self.audit = audit
        self._tokenizer = tokenizer
        self._judgements = Judgements(classifiers, self._judged)
        self._deliver: Callable[[int, Judgement], None] | None = None
        self._open: dict[int, Guarded] = {}

    @property
    def counters(self) -> dict[str, ClassifierCounters]:
        return {runner.name: runner.counters for runner in self._classifiers.runners}

    @property
    def reads_text(self) -> bool:
        """Whether there are some now: they may be registered while the worker runs."""
        return len(self._classifiers) > 0

    @property
    def reads_logprobs(self) -> bool:
        return self._classifiers.settings.logprobs

    @property
    def resumable(self) -> bool:
        """Whether they may judge again what another worker's classifiers have judged."""
        return self._classifiers.resumable

    async def start(self, deliver: Callable[[int, Judgement], None]) -> None:
        """`deliver` gets request_id and judgement. Raises ConfigError or LoadError."""
        self._deliver = deliver
        if self.audit is not None:
            self.audit.start()
        await self._classifiers.startup()

    async def close(self) -> None:
        """Close all classifiers, in bounded time."""
        await self._judgements.close()
        await self._classifiers.shutdown()
        if self.audit is not None:
            self.audit.close()

    def open(self, request: EngineRequest, task: common_pb2.Task, *, output_index: int) -> None:
        """Take note that a sequence begins."""
        if runners := self._classifiers.runners:
            self._open[request.request_id] = Guarded(request, task, output_index, runners)

    def ask(self, request_id: int, question: Question, *, finish_reason: str) -> None:
        """Begin a judgement; it is delivered unless the sequence is over before."""
        guarded = self._open[request_id]
        guarded.question = question
        if guarded.context is None:
            guarded.context = self._new_context(guarded)
        context = question.context(guarded.context, finish_reason=finish_reason)
        self._judgements.ask(request_id, context, guarded.runners)

    def record(self, request_id: int, judgement: Judgement) -> str:
        """Write a delivered judgement down. Returns its external scores as JSON, empty where the
        client did not ask for them. Raises HookError where the audit log must take every record and
        cannot.
        """
        guarded = self._open[request_id]
        if self.audit is not None and guarded.question is not None:
            _write_down(self.audit, guarded, guarded.question, judgement)
        if not guarded.task.want_external_scores:
            return ""
        return json.dumps(judgement.scores, ensure_ascii=False)

    def over(self, request_id: int) -> None:
        """Nothing more of the sequence is judged (S4-115). Unknown: no effect."""
        self._judgements.cancel(request_id)
        self._open.pop(request_id, None)

    def _judged(self, key: Hashable, judgement: Judgement) -> None:
        if self._deliver is not None and isinstance(key, int):
            self._deliver(key, judgement)

    def _new_context(self, guarded: Guarded) -> ScoringContext:
        request, task = guarded.request, guarded.task
        return ScoringContext(
            request_id=str(request.request_id),
            prompt=task.prompt_text or self._tokenizer.decode(request.token_ids),
            generated_text="",
            extra_fields=extra_fields.read(task.extra_fields),
            prompt_token_ids=list(request.token_ids),
            request_metadata={
                "metadata": dict(task.metadata),
                "trace_id": task.trace_id,
                "model": task.model,
                "lora_adapter": task.lora_adapter,
                "phase": "decode",
                "output_index": guarded.output_index,
                "streaming": task.streaming,
                "regeneration": task.regeneration.count,
                "replayed_tokens": len(request.made),
            },
        )


def _write_down(
    audit: AuditLog, guarded: Guarded, question: Question, judgement: Judgement
) -> None:
    """Raises HookError where the log must take every record and cannot."""
    shown = judgement.replacement if judgement.blocked else question.text
    for name, decision in judgement.decisions.items():
        audit.record(
            Decided(
                phase="decode",
                trace_id=guarded.task.trace_id,
                request_id=guarded.request.request_id,
                output_index=guarded.output_index,
                tenant=guarded.task.tenant,
                hook=name,
                decision="emit" if decision == "pass" else decision,
                text_before=question.text,
                text_after=shown,
                token_count=len(question.token_ids),
                replay=0 < len(question.token_ids) <= len(guarded.request.made),
                lora_adapter=guarded.task.lora_adapter,
            )
        )
