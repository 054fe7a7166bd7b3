"""Arguments that are written as something else, as JSON. All is bounded by what it is given."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Never

LITERAL_LIMIT = 16 * 1024
"""Characters outside of strings in the arguments of one call in Python: they bound for how long
Python's own parser keeps the loop."""

_STRING = re.compile(r"'(?:[^'\\]+|\\.)*'|\"(?:[^\"\\]+|\\.)*\"", re.DOTALL)
_UNKNOWN_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN = "\\'\"abfnrtvxuUN0123"
_SURROGATE = re.compile("[\ud800-\udfff]")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


def to_json(value: object) -> str:
    """The value as JSON that can be encoded. Raises ValueError or TypeError if it has none."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return json.dumps(value) if _SURROGATE.search(text) else text


def is_object(text: str) -> bool:
    """Whether the text is one JSON object that can be encoded."""
    if _SURROGATE.search(text):
        return False
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def keyword_arguments(text: str) -> str:
    """The JSON object of what stands between the parentheses of a call in Python.

    Raises ValueError if that is anything but keywords with literals that JSON has too, or longer
    than `LITERAL_LIMIT` outside of strings.
    """
    if len(_STRING.sub("", text)) > LITERAL_LIMIT:
        raise ValueError
    try:
        call = ast.parse(f"f({_STRING.sub(_mended, text)}\n)", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        return to_json({_key(each): ast.literal_eval(each.value) for each in call.keywords})
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError from error


def typed(text: str, types: frozenset[str]) -> str:
    """A value that was written without its type, as JSON: as what it says, if it may be that, and
    otherwise as a string. `types` are those of JSON Schema; none: it may be any."""
    stripped = text.strip()
    said = _PYTHON.get(stripped, stripped)
    try:
        value = json.loads(said, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return to_json(text)
    of = _types_of(value)
    return said if of != {"string"} and (not types or of & types) else to_json(text)


def types_of_property(schema: Mapping[str, object], key: str) -> frozenset[str]:
    """The types that the schema of an object allows for one of its properties, as far as it says so
    without references; empty: it says nothing."""
    properties = schema.get("properties")
    declared = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(declared, Mapping):
        return frozenset()
    options = [declared.get(word) for word in ("anyOf", "oneOf", "allOf")]
    said = [declared, *(each for option in options if isinstance(option, list) for each in option)]
    return frozenset().union(*(_types_said(each) for each in said))


def _types_said(schema: object) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return frozenset()
    types = schema.get("type", [])
    values = schema.get("enum", [])
    listed = types if isinstance(types, list) else [types]
    return frozenset(each for each in listed if isinstance(each, str)).union(
        *(_types_of(each) for each in (values if isinstance(values, list) else []))
    )


def _types_of(value: object) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


def _key(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError
    return keyword.arg


def _mended(string: re.Match[str]) -> str:
    """A string as Python reads it: models write new lines and backslashes as they are."""
    return _UNKNOWN_ESCAPE.sub(_known, string[0]).replace("\n", "\\n").replace("\r", "\\r")


def _known(escape: re.Match[str]) -> str:
    return escape[0] if escape[1] in _KNOWN else "\\" + escape[0]


def _refuse(constant: str) -> Never:
    raise ValueError(constant)
