"""What stands for Presidio where it is not installed: its interface, and three kinds of data."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever imports Presidio until the test is over gets this."""
    package, nlp = ModuleType("presidio_analyzer"), ModuleType("presidio_analyzer.nlp_engine")
    package.AnalyzerEngine = Analyzer  # type: ignore[attr-defined]
    package.AnalyzerEngineProvider = Provider  # type: ignore[attr-defined]
    nlp.NoOpNlpEngine = NoOp  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "presidio_analyzer", package)
    monkeypatch.setitem(sys.modules, "presidio_analyzer.nlp_engine", nlp)


class Analyzer:
    """Finds e-mail addresses, their domains as URLs, and numbers with a low score; of two kinds
    more, which our examples name, nothing.
    """

    def __init__(self, **given: Any) -> None:
        self.given = given
        self.calls: list[dict[str, Any]] = []

    def get_supported_entities(self, language: str) -> list[str]:
        return ["EMAIL_ADDRESS", "URL", "NUMBER", "CREDIT_CARD", "PHONE_NUMBER"]

    def analyze(self, **asked: Any) -> list[SimpleNamespace]:
        self.calls.append(asked)
        kinds = {
            "EMAIL_ADDRESS": (r"\w+@\w+\.\w+", 1.0),
            "URL": (r"\w+\.com", 0.5),
            "NUMBER": (r"\d+", 0.3),
        }
        return [
            SimpleNamespace(start=hit.start(), end=hit.end(), score=score, entity_type=kind)
            for kind, (pattern, score) in kinds.items()
            if score >= asked["score_threshold"] and kind in (asked["entities"] or kinds)
            for hit in re.finditer(pattern, asked["text"])
        ]


class NoOp:
    def __init__(self, models: list[dict[str, str]]) -> None:
        self.models = models
        self.loaded = False

    def load(self) -> None:
        self.loaded = True


class Provider:
    def __init__(self, analyzer_engine_conf_file: str) -> None:
        if "broken" in Path(analyzer_engine_conf_file).read_text():
            raise ValueError("no")

    def create_engine(self) -> Analyzer:
        return Analyzer()
