"""The pages read well in any editor: no line of prose is longer than 100 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from one_case import one_case

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100
_FENCE = re.compile(r" *(```|~~~)")
_NO_PROSE = re.compile(r"\s*\||    |<|\[[^\]]+\]:|#")
"""Tables, indented code, HTML, link definitions and headings."""


PAGES = sorted(
    str(page.relative_to(ROOT))
    for folder in (
        "",
        "[!d]*/",
        "d[!o]*/",
        "docs/**/",
        "helm/tandem/",
        "kits/*/**/",
        "scripts/requirements/",
    )
    for page in ROOT.glob(f"{folder}*.md")
)


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page that are neither code, tables, headings nor HTML."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence and not _NO_PROSE.match(line):
            yield number, line


def breakable(line: str) -> bool:
    """Whether a line holds more than one word, code or link, so that it could be shorter."""
    whole = re.sub(r"`[^`]+`|\[[^\]]*\]\([^)]*\)", "x", line.strip())
    return " " in re.sub(r"^(?:[-*>]|\d+\.) ", "", whole)


def test_there_are_pages() -> None:
    assert {"README.md", "docs/architecture.md", "helm/tandem/README.md"} <= set(PAGES)


@one_case("page", PAGES)
def test_prose_is_wrapped_at_100_columns(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    long = [
        f"{page}:{number}"
        for number, line in prose(text)
        if len(line) > COLUMNS and breakable(line)
    ]
    assert not long
