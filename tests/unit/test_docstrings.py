"""Docstrings are sentences that say what a reader needs, not fragments."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FEWEST_WORDS = 5
"""A docstring that only says what is raised may be shorter: name and types say the rest."""
FOLDERS = (
    "tandem", "frontend", "router", "prefill_worker", "decode_worker", "aggregated_worker",
    "local_executor", "trace_replay", "monitoring", "scripts", "benchmarks",
)  # fmt: skip


def modules() -> list[str]:
    found = (path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return sorted(str(path) for path in found if path.parts[:2] != ("tandem", "v1"))


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Those of modules, classes and functions."""
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text


def notes(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings below the assignment that they explain. They name no subject, so they may be short:
    a unit is enough."""
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for before, after in pairwise(node.body):
                if isinstance(before, ast.Assign | ast.AnnAssign):
                    match after:
                        case ast.Expr(value=ast.Constant(value=str(text))):
                            yield after.lineno, text


@pytest.mark.parametrize("path", modules())
def test_docstrings_are_no_fragments(path: str) -> None:
    module = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = list(docstrings(module))
    short = [
        f"{path}:{line} {text}"
        for line, text in found
        if len(text.split()) < FEWEST_WORDS and not text.startswith("Raises ")
    ]
    begun = [
        f"{path}:{line} {text}"
        for line, text in [*found, *notes(module)]
        if text.split()[:1] == ["Of"]
    ]
    assert not short + begun
