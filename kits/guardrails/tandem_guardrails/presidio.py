"""Personal data as Microsoft Presidio finds it, for `pii` with `engine: presidio`.

Needs the extra `presidio`. Presidio is asked for a sentence or a window at a time
(tandem.hooks.window). Unless `config` names an analyzer configuration of Presidio's own, it runs
without a language model: all its pattern recognizers, but no names and places.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

from tandem.errors import LoadError
from tandem.hooks.window import Block, Flush, Window, WindowHook
from tandem_guardrails import arguments
from tandem_guardrails.pattern_filter import Action

_PROBE = "first@example.com"


class PresidioFilter(WindowHook):
    """A hook; the stop_reason of a terminate is Presidio's name of the entity."""

    KEYS: ClassVar = ("config", "language", "score", "flush", "max_tokens", "overlap")

    def __init__(
        self,
        *,
        entities: list[str] | None = None,
        action: Action = "redact",
        replacement: str | None = None,
        config: str = "",
        language: str = "en",
        score: float = 0.4,
        flush: Flush = "sentence",
        max_tokens: int = 64,
        overlap: int = 64,
    ) -> None:
        """`score`: the least of a finding that counts, from 0 to 1. Raises LoadError."""
        super().__init__(max_tokens=max_tokens, overlap=overlap, flush=flush)
        if type(score) not in (int, float) or not 0 <= score <= 1:
            raise LoadError(f"presidio.score must be from 0 to 1, not {score!r}")
        self._entities = entities
        self._action = action
        self._replacement = replacement
        self._score = score
        self._language = arguments.text("presidio.language", language)
        self._analyzer = _analyzer(
            arguments.text("presidio.config", config, empty=True), self._language
        )
        known = self._analyzer.get_supported_entities(self._language)
        unknown = sorted(set(entities or ()) - set(known))
        if unknown:
            raise LoadError(
                f"entities: Presidio knows no {', '.join(unknown)} here, only "
                f"{', '.join(sorted(known))}"
            )
        # What Presidio loads at its first use, it loads now.
        self._found(_PROBE)

    def check(self, window: Window) -> str | Block | None:
        found = self._found(window.text)
        if not found:
            return None
        if self._action == "terminate":
            start, _, entity = found[0]
            return Block(entity, window.text[:start])
        text = window.text
        for start, end, entity in reversed(found):
            shown = f"[{entity}]" if self._replacement is None else self._replacement
            text = text[:start] + shown + text[end:]
        return text

    def _found(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, entity), in order; findings that overlap are one, named by the surest."""
        results = self._analyzer.analyze(
            text=text,
            language=self._language,
            entities=self._entities,
            score_threshold=self._score,
        )
        merged: list[tuple[int, int, float, str]] = []
        for result in sorted(results, key=lambda one: (one.start, -one.end)):
            start, end = result.start, result.end
            surest = (result.score, result.entity_type)
            if merged and start < merged[-1][1]:
                first, last, score, entity = merged.pop()
                start, end = first, max(end, last)
                surest = max(surest, (score, entity), key=lambda one: one[0])
            merged.append((start, end, *surest))
        return [(start, end, entity) for start, end, _, entity in merged]


def _analyzer(config: str, language: str) -> Any:
    try:
        presidio = importlib.import_module("presidio_analyzer")
        nlp = importlib.import_module("presidio_analyzer.nlp_engine")
    except ImportError as error:
        raise LoadError(
            "engine presidio needs the package presidio-analyzer: install tandem-serving[presidio]"
        ) from error
    if not config:
        engine = nlp.NoOpNlpEngine(models=[{"lang_code": language, "model_name": "no_op"}])
        engine.load()
        return presidio.AnalyzerEngine(nlp_engine=engine, supported_languages=[language])
    if not Path(config).is_file():  # Presidio would warn and take its default
        raise LoadError(f"presidio.config: there is no file {config!r}")
    try:
        return presidio.AnalyzerEngineProvider(analyzer_engine_conf_file=config).create_engine()
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise LoadError(f"presidio.config {config!r}: Presidio raised {words}") from error
