"""JSON Schemas as far as a grammar can force them: those of tools that are not `strict`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tandem.logits.forms.tagged import LENIENT

DEEPEST = 64
"""How many schemas in each other are looked at; a schema deeper inside is left unchanged."""

_PARTS = re.compile(r"\\.|\(\?<?[=!>#]", re.DOTALL)
_BEYOND = re.compile(r"\(.*|\\[1-9bBcGhHkKRXZ]")
"""Look-around, references to earlier groups, and escapes of other dialects: no grammar has them."""
_DATA = ("const", "default", "enum", "examples")
"""Keywords that hold values, which may look like schemas."""


def forcible(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without patterns that no grammar can force."""
    return {**_without_patterns(schema, DEEPEST), **LENIENT}


def _without_patterns(schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {
        key: value if key in _DATA else _walked(value, depth - 1)
        for key, value in schema.items()
        if not _is_beyond(key, value)
    }


def _walked(value: Any, depth: int) -> Any:
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        return _without_patterns(value, depth)
    if isinstance(value, list):
        return [_walked(each, depth - 1) for each in value]
    return value


def _is_beyond(key: str, value: Any) -> bool:
    """Whether a keyword holds a pattern that no grammar can force."""
    if key == "pattern":
        patterns = [value] if isinstance(value, str) else []
    else:
        patterns = [*value] if key == "patternProperties" and isinstance(value, Mapping) else []
    return any(_BEYOND.fullmatch(part) for each in patterns for part in _PARTS.findall(each))
