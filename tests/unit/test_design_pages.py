"""Design pages say what the code does, where a machine can tell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from one_case import one_case
from product_packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
DESIGN = ROOT / "docs" / "design"
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
OURS = ("architecture.md", "request-lifecycle.md", "router.md")
"""Pages about the code, beside the design pages."""

_FILE = re.compile(
    r"`((?:tandem|frontend|router|prefill_worker|decode_worker|aggregated_worker|kits|monitoring"
    r"|tests|benchmarks|scripts|examples|proto|docker|deploy|helm|model|docs)/[\w./*-]*)`"
)
_CLASS = re.compile(r"`(_?[A-Z][a-z]+(?:[A-Z][a-z]*)*)(?=[.(`])")


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
    found = {
        (name, path.name)
        for path in PACKAGES["tandem_sglang"].glob("*.py")
        for name in replaced(path)
    }
    assert listed == found
    assert len(found) == 39, "and the sentences above the table say how many"
    assert page.count("thirty-nine") == 2


@one_case("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = {name.rstrip("/") for name in _FILE.findall(_without_blocks(page))}
    assert {name for name in named if not any(ROOT.glob(name))} == set()


@one_case(
    "page", [*DESIGN.glob("*.md"), *(DOCS / name for name in OURS)], ids=lambda page: page.stem
)
def test_the_classes_that_a_page_names_exist(page: Path) -> None:
    named = set(_CLASS.findall(_without_blocks(page)))
    assert {name for name in named if not re.search(rf"\b{name}\b", _code())} == set()


def _without_blocks(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


@cache
def _code() -> str:
    return "\n".join(
        path.read_text(encoding="utf-8")
        for folder in (*PACKAGES.values(), ROOT / "proto", ROOT / "tests")
        for path in folder.rglob("*")
        if path.suffix in (".py", ".proto")
    )


def test_architecture_lists_every_design_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[\d{4}\]\(design/([\w-]+\.md)\)", page, re.MULTILINE)
    assert listed == sorted(path.name for path in DESIGN.glob("*.md"))
