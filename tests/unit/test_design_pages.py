"""Design pages say what the code does, where a machine can tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DESIGN = ROOT / "docs" / "design"
SGLANG = ROOT / "tandem" / "engine" / "sglang"


def replaced(path: Path) -> Iterator[str]:
    """What a module assigns to below a name that it imported from SGLang."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.")
        for alias in node.names
    }
    for node in ast.walk(module):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            root, _, rest = ast.unparse(target).partition(".")
            if isinstance(target, ast.Attribute) and root in imported:
                yield f"{imported[root]}.{rest}".removeprefix("sglang.srt.")


def test_0003_lists_every_attribute_of_sglang_that_is_replaced() -> None:
    page = (DESIGN / "0003-embedding-sglang.md").read_text(encoding="utf-8")
    table = page.partition("## What is replaced in SGLang\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `([\w.]+)` \|.*\| `([\w.]+)` \|$", table, re.MULTILINE))
    found = {(name, path.name) for path in SGLANG.glob("*.py") for name in replaced(path)}
    assert listed == found
    assert len(found) == 7, "and the sentences above and below the table say how many"


def test_architecture_lists_every_design_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[\d{4}\]\(design/([\w-]+\.md)\)", page, re.MULTILINE)
    assert listed == sorted(path.name for path in DESIGN.glob("*.md"))
