"""What a worker is given to be one of its phase: the rules of its core, and its classifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tandem.engine.base import EngineRequest
from tandem.hooks.audit import AuditLog
from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.counters import ClassifierCounters
from tandem.hooks.classifiers.sequence_guard import Question
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2
from tandem.worker.config import WorkerConfig
from tandem.worker.core.rules import PhaseRules


class Classifiers(Protocol):
    """Judge whole outputs, while the worker goes on."""

    @property
    def audit(self) -> AuditLog | None:
        """Where judgements are written down; None: nowhere."""

    @property
    def counters(self) -> Mapping[str, ClassifierCounters]:
        """The counters of each classifier, by its name."""

    @property
    def reads_text(self) -> bool:
        """Whether there are some now: they may be registered while the worker runs."""

    @property
    def reads_logprobs(self) -> bool:
        """Whether they are given the log-probabilities of tokens."""

    @property
    def resumable(self) -> bool:
        """Whether they may judge again what another worker's classifiers have judged."""

    async def start(self, deliver: Callable[[int, Judgement], None]) -> None:
        """`deliver` gets request_id and judgement. Raises ConfigError or LoadError."""

    async def close(self) -> None:
        """Close all classifiers, in bounded time."""

    def open(self, request: EngineRequest, task: common_pb2.Task, *, output_index: int) -> None:
        """Take note that a sequence begins."""

    def ask(self, request_id: int, question: Question, *, finish_reason: str) -> None:
        """Begin a judgement; it is delivered unless the sequence is over before."""

    def record(self, request_id: int, judgement: Judgement) -> str:
        """Write a delivered judgement down. Returns its external scores as JSON, empty where the
        client did not ask for them. Raises HookError where the audit log must take every record and
        cannot.
        """

    def over(self, request_id: int) -> None:
        """Nothing more of the sequence is judged (S4-115). Unknown: no effect."""


@dataclass(frozen=True)
class PhaseParts:
    """The parts of a worker that are its phase's own."""

    rules: PhaseRules
    classifiers: Classifiers | None = None
    parks: Callable[[], bool] = lambda: True
    """Prefill: whether a context-only request may run now, where its engine can park KV."""


LoadPhase = Callable[[WorkerConfig, Tokenizer], PhaseParts]
"""Loads user code, so it may raise ConfigError or LoadError."""
