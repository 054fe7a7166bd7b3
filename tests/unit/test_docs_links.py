"""Links between the pages lead to a file that exists, and to a heading that it has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from one_case import one_case
from test_docs_prose import PAGES, ROOT

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^( *)(```|~~~).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
_ELSEWHERE = re.compile(r"[a-z]+:")


def anchors(text: str) -> Iterator[str]:
    """Of a page's headings, as GitHub makes them: one that was there before gets a number."""
    seen: Counter[str] = Counter()
    for head in re.findall(r"^#+ (.+)$", _FENCED.sub("", text), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        yield f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor
        seen[anchor] += 1


def dead(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if _ELSEWHERE.match(link):
            continue
        if not target.exists():
            found.append(link)
        elif anchor and target.suffix == ".md":
            known = set(anchors(target.read_text(encoding="utf-8")))
            found += [link] * (anchor not in known)
    return found


@one_case("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert dead(ROOT / page) == []


def test_a_link_to_a_heading_that_is_not_there_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A *page*: one\n## Twice\n```\n# no heading\n```\n## Twice\n")
    page.with_name("other.md").write_text(
        "[a](page.md#a-page-one) [b](page.md#twice-1) [c](https://example.org/#x) [d](#here)\n"
        "[e](page.md#no-heading) [f](gone.md) [g](page.md#twice-2)\n\n# Here\n"
    )
    assert dead(page.with_name("other.md")) == ["page.md#no-heading", "gone.md", "page.md#twice-2"]
