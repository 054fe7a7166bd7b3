"""Design pages say what the code does, where a machine can tell."""

from __future__ import annotations

import re
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
