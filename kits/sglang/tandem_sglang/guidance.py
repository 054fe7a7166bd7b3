"""llguidance as SGLang's grammar backend, held to what the sim engine holds it to: limits for each
step, and the same JSON on one line.
"""

from __future__ import annotations

from typing import Any

from llguidance import LLMatcher, LLParserLimits
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from sglang.srt.constrained.llguidance_backend import GuidanceBackend, GuidanceGrammar

from tandem.logits.forms.compiler import STEP_LIMITS
from tandem.logits.forms.tagged import ONE_LINE


class BoundedBackend(GuidanceBackend):
    """SGLang's backend, whose grammars are of another kind."""

    kind = GuidanceGrammar

    def _from_serialized(self, serialized_grammar: str) -> Any:
        try:
            matcher = bounded(self.llguidance_tokenizer, serialized_grammar)
            return self.kind(self.llguidance_tokenizer, serialized_grammar, ll_matcher=matcher)
        except Exception as error:  # noqa: BLE001 - of a library, about the form
            return InvalidGrammarObject(str(error))

    def dispatch_json(self, key_string: str) -> Any:
        if self.any_whitespace:
            return super().dispatch_json(key_string)
        try:
            grammar = LLMatcher.grammar_from_json_schema(key_string, overrides=ONE_LINE)
        except Exception as error:  # noqa: BLE001 - of a library, about the form
            return InvalidGrammarObject(str(error))
        return self._from_serialized(grammar)


def bounded(tokenizer: Any, grammar: str) -> LLMatcher:
    """A matcher that has limits for each step."""
    limits = LLParserLimits(**STEP_LIMITS, verbose_errors=False)
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
