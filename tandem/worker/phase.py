"""What a worker is given to be one of its phase: the rules of its core, and its classifiers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.text.tokenizer import Tokenizer
from tandem.worker.classifying import Classifying
from tandem.worker.config import WorkerConfig
from tandem.worker.core.rules import PhaseRules


@dataclass(frozen=True)
class PhaseParts:
    """The parts of a worker that are its phase's own."""

    rules: PhaseRules
    classifiers: Classifying | None = None
    parks: Callable[[], bool] = lambda: True
    """Prefill: whether a context-only request may run now, where its engine can park KV."""


LoadPhase = Callable[[WorkerConfig, Tokenizer], PhaseParts]
"""Loads user code, so it may raise ConfigError or LoadError."""
