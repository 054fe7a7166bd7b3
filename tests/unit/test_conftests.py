"""What tests share lies in modules of their own: many folders have a conftest.py, and which of them
an import finds depends on the order of all folders.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APART = ROOT / "tests" / "clients"
"""Runs by a pytest.ini of its own."""


def test_no_test_imports_a_conftest() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in (ROOT / "tests", *ROOT.glob("kits/*/tests"))
        for path in sorted(folder.rglob("*.py"))
        if not path.is_relative_to(APART)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and node.module == "conftest")
        or (isinstance(node, ast.Import) and "conftest" in [each.name for each in node.names])
    ]
    assert not found
