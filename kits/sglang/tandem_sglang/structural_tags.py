"""Calls between tags as a structural tag of xgrammar, for SGLang with that grammar backend.

Runs in a process that compiles forms. xgrammar goes on with all that a text may yet become, so
nothing need be told from what begins alike. It matches text, whatever the tokens: special tokens of
the tags may come spelled, and free text may hold them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from sglang.srt.constrained.json_schema_validation import (
    UnsupportedJSONSchemaFeature,
    validate_xgrammar_json_schema,
)
from xgrammar import Grammar

from tandem.logits.forms.tagged import SpecialTokens, Tags
from tandem_sglang.form_compiler import words

Format: TypeAlias = dict[str, Any]
"""See xgrammar.structural_tag."""


def structural_tag(tags: Tags, special: SpecialTokens, *, any_whitespace: bool) -> str:
    """The JSON of one. Raises ValueError, naming the schema at fault."""
    for text in (*tags.texts(), tags.before):
        special.split(text)  # for the ValueError of one that nothing could follow
    return json.dumps({"type": "structural_tag", "format": _Formats(tags, any_whitespace).whole()})


class _Formats:
    def __init__(self, tags: Tags, any_whitespace: bool) -> None:
        self._tags = tags
        self._any_whitespace = any_whitespace
        self._calls = [
            _sequence(self._json(call.schema, f"calls[{place}].schema"), _text(call.end))
            for place, call in enumerate(tags.calls)
        ]

    def whole(self) -> Format:
        tags = self._tags
        start = self._calls_in_text() if tags.triggers else self._calls_alone()
        if not tags.before:
            return start
        after = _sequence(_free_of([tags.before]), _text(tags.before), start)
        return _any([after, _free_of([tags.before])]) if tags.triggers else after

    def _calls_alone(self) -> Format:
        answer = self._tags.answer
        if self._tags.pattern is not None:
            return {"type": "regex", "pattern": self._tags.pattern}
        if self._tags.choices is not None:
            return _any(map(_text, self._tags.choices))
        if answer is not None and not self._tags.calls:
            return self._json(answer, "answer")
        calls = _sequence(self._any_call(self._tags.begin), self._further())
        return calls if answer is None else _any([calls, self._json(answer, "answer")])

    def _calls_in_text(self) -> Format:
        tags = self._tags
        text = _free_of(tags.triggers)
        calls = _sequence(text, self._any_call(tags.begin))
        if tags.in_section:
            calls = _sequence(calls, self._further())
        return _sequence(_many(calls), text) if tags.text_follows else _any([calls, text])

    def _any_call(self, before: str) -> Format:
        return _any(
            _sequence(_text(before + call.begin), content)
            for call, content in zip(self._tags.calls, self._calls, strict=True)
        )

    def _further(self) -> Format:
        """What follows the first call."""
        end = _text(self._tags.end)
        if not self._tags.several:
            return end
        return _sequence(_many(self._any_call(self._tags.separator)), end)

    def _json(self, schema: Mapping[str, Any], param: str) -> Format:
        """As SGLang has xgrammar read a schema, blanks included."""
        try:
            validate_xgrammar_json_schema(schema)
            grammar = Grammar.from_json_schema(
                json.dumps(schema), any_whitespace=self._any_whitespace
            )
        except (RuntimeError, UnsupportedJSONSchemaFeature) as error:
            raise ValueError(f"{param}: {words(str(error))}") from error
        return {"type": "grammar", "grammar": str(grammar)}


def _text(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _free_of(texts: Iterable[str]) -> Format:
    return {"type": "any_text", "excludes": list(texts)}


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _many(content: Format) -> Format:
    return {"type": "star", "content": content}


def _any(alternatives: Iterable[Format]) -> Format:
    return {"type": "or", "elements": list(alternatives)}
