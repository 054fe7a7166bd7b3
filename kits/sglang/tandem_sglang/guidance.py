"""llguidance as SGLang's grammar backend, held to what the sim engine holds it to: limits for each
step, and the same JSON on one line.
"""

from __future__ import annotations

from typing import Any

from llguidance import LLMatcher, LLParserLimits
from sglang.srt.constrained import llguidance_backend

from tandem.logits.forms.compiler import STEP_LIMITS
from tandem.logits.forms.tagged import ONE_LINE


class BoundedMatcher:
    """Stands where SGLang names llguidance's matcher, and makes one that has limits."""

    def __new__(cls, tokenizer: Any, grammar: str, **_: Any) -> Any:
        limits = LLParserLimits(**STEP_LIMITS, verbose_errors=False)
        return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)

    @staticmethod
    def grammar_from_json_schema(schema: str, defaults: Any) -> Any:
        if defaults["whitespace_flexible"]:
            return LLMatcher.grammar_from_json_schema(schema, defaults=defaults)
        return LLMatcher.grammar_from_json_schema(schema, overrides=ONE_LINE)


def bound_steps() -> None:
    """Call it before a backend is made."""
    llguidance_backend.LLMatcher = BoundedMatcher
