"""Arguments in other notations, as JSON. Memory and time are bounded by the text's length."""

from __future__ import annotations

import ast
import json
import re
from typing import Never

from tandem.text.json_reader import JsonReader
from tandem_answers.parsing.schemas import types_of

LITERAL_LIMIT = 16 * 1024
"""Characters outside of strings: they bound how long Python's own parser keeps the loop."""

_STRING = re.compile(r"""(['"])(?:(?!\1)[^\\]|\\.)*+(?:\1|\\?\Z)""", re.DOTALL)
"""One without its end goes on to the end of the text: none is looked for again from inside."""
_UNKNOWN_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN = "\\'\"abfnrtvxuUN0123"
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONSTANTS = {"true": True, "false": False, "null": None}
_SURE_LITERAL = re.compile(r"[\[{]|(?:True|False|None)\Z")
_NO_LITERAL = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError)


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

    Raises ValueError if that is anything but keywords with literals that JSON has too, in Python's
    words or JSON's, or longer than `LITERAL_LIMIT` outside of strings.
    """
    try:
        call = _expression(text, "f(", "\n)")
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        return to_json({_key(each): _evaluated(each.value) for each in call.keywords})
    except _NO_LITERAL as error:
        raise ValueError from error


def typed(text: str, types: frozenset[str]) -> str:
    """An untyped value as JSON, of one of JSON Schema's `types` (none: any), else as a string."""
    if types == {"string"}:
        return to_json(text)
    said = _said_json(text.strip(), types) or _said_literal(text.strip(), types)
    return said or to_json(text)


def _said_json(text: str, types: frozenset[str]) -> str:
    """The text, mended, if it is JSON of one of the types; empty: it is not."""
    written, end = JsonReader().mended(text, 0)
    said = written + text[end:]
    try:
        value = json.loads(said, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ""
    return said if _may_be(value, types) else ""


def _said_literal(text: str, types: frozenset[str]) -> str:
    """The text as JSON, if it is a literal of Python of one of the types; empty: it is not. Where
    it may be a string, only what no text looks like is a literal."""
    if (not types or "string" in types) and not _SURE_LITERAL.match(text):
        return ""
    try:
        value = _evaluated(_expression(text))
        return to_json(value) if _may_be(value, types) else ""
    except _NO_LITERAL:
        return ""


def _may_be(value: object, types: frozenset[str]) -> bool:
    """Whether a value without quotes is one of the types; any of its own, if there are none."""
    of = types_of(list(value) if isinstance(value, tuple) else value)
    return of != {"string"} and (not types or bool(of & types))


def _expression(text: str, before: str = "", after: str = "") -> ast.expr:
    """A text in Python, between two others. Raises ValueError, or another of `_NO_LITERAL`."""
    if len(_STRING.sub("", text)) > LITERAL_LIMIT:
        raise ValueError
    return ast.parse(f"{before}{_STRING.sub(_mended, text)}{after}", mode="eval").body


def _evaluated(node: ast.expr) -> object:
    """The value of a literal of Python or of JSON, or of both mixed."""
    return ast.literal_eval(_Constants().visit(node))


class _Constants(ast.NodeTransformer):
    """Reads the constants of JSON as those of Python."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_CONSTANTS[node.id]) if node.id in _CONSTANTS else node


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
