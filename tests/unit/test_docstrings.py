"""Docstrings, notes, and what users read of the code name the thing that they are about."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from product_packages import sources

ROOT = Path(__file__).resolve().parents[2]
WORDS = """
it its that those one ones what whose which of such they them other others some so all whoever
nobody there these is are has have as was were be been by then where
"""
EMPTY = frozenset(WORDS.split())
"""Words that name nothing: of a text that is a sentence, fewer than half are of these."""
SHORTEST, LONGEST = 4, 60
"""Words of a text that is measured: a unit may stand alone, and a page has other measures."""


def texts() -> Iterator[tuple[str, str]]:
    """Where each docstring and note of the product stands, and its text on one line."""
    tools = (path for each in ("monitoring", "scripts") for path in (ROOT / each).rglob("*.py"))
    for path in (*sources(), *tools):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield where, " ".join(text.split())


def said() -> Iterator[tuple[str, str]]:
    """Where settings, --help and log lines stand, and their texts."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            given = [each.value for each in node.keywords if each.arg in ("help", "description")]
            if called == "setting":
                given += node.args[1:2]
            elif called.startswith(("log.", "self._log.")):
                given += node.args[:1]
            for text in filter(None, map(_text, given)):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def _text(node: ast.expr) -> str:
    """A text of the code; what an f-string puts in is a word."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.FormattedValue):
        return "x"
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_foggy(text: str) -> bool:
    words = [word.strip('.,;:`()"').lower() for word in text.split()]
    empty = sum(word in EMPTY for word in words)
    return SHORTEST <= len(words) <= LONGEST and empty * 2 >= len(words)


def test_docstrings_and_notes_name_their_thing() -> None:
    found = list(texts())
    assert len(found) > 5_000
    assert [f"{where}: {text}" for where, text in found if is_foggy(text)] == []
    assert [f"{where}: {text}" for where, text in found if text.startswith("Of ")] == []


def test_settings_help_and_log_lines_name_their_thing() -> None:
    found = list(said())
    assert len(found) > 400
    assert [f"{where}: {text}" for where, text in found if is_foggy(text)] == []
    begun = re.compile(r"(^|[.!?] )(It|They|Those|These|Such|That) ")
    assert [f"{where}: {text}" for where, text in found if begun.search(text)] == []


@pytest.mark.parametrize(
    ("text", "foggy"),
    [
        ("As much of it is there for what is new.", True),
        ("Bytes that new requests may take; the rest is for output of running ones.", False),
        ("Those of one row, as they travel.", True),
        ("Milliseconds.", False),
    ],
)
def test_a_text_of_empty_words_is_foggy(text: str, foggy: bool) -> None:
    assert is_foggy(text) is foggy
