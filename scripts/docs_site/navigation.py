"""The site's pages as docs/navigation.toml lists them. Standard library only: a test of the lean
environment reads the file too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAVIGATION = "docs/navigation.toml"
INDEX = "docs/README.md"


@dataclass(frozen=True)
class Section:
    title: str
    pages: tuple[str, ...]
    """Paths of pages in the repository, patterns replaced by what they match."""
    modules: dict[str, list[str]]
    """Pages that the site's build writes of docstrings, each with its modules."""


def sections(root: Path = ROOT) -> list[Section]:
    """All sections in their order. Raises ValueError for a page that is listed twice, or is not
    there.
    """
    read = tomllib.loads((root / NAVIGATION).read_text(encoding="utf-8"))["section"]
    # A page that is listed by its name stands there, and not where a pattern meets it.
    named = {page for each in read for page in each["pages"] if "*" not in page}
    found = [
        Section(
            each["title"],
            tuple(page for entry in each["pages"] for page in _pages(root, entry, named)),
            each.get("modules", {}),
        )
        for each in read
    ]
    listed = [page for each in found for page in each.pages]
    if twice := sorted({page for page in listed if listed.count(page) > 1}):
        raise ValueError(f"{NAVIGATION} lists twice: {', '.join(twice)}")
    if gone := [page for page in listed if not (root / page).is_file()]:
        raise ValueError(f"{NAVIGATION} lists pages that are not there: {', '.join(gone)}")
    return found


def _pages(root: Path, entry: str, named: set[str]) -> list[str]:
    if "*" not in entry:
        return [entry]
    matched = sorted(str(path.relative_to(root)) for path in root.glob(entry))
    return [page for page in matched if page not in named]


def title(text: str) -> str:
    """A page's title: the text of its first heading, without marks."""
    (heading,) = re.findall(r"^# (.+)$", text, re.MULTILINE)[:1]
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip()


def summary(text: str) -> str:
    """The first sentence of a page's prose, without marks; empty where the page has none."""
    bare = re.sub(r"^( *)```.*?^\1``` *$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n", bare.partition("\n")[2]):
        line = " ".join(paragraph.split())
        if line and line[0] not in "#|<!->*" and not paragraph.startswith("    "):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line).replace("**", "")
            return re.split(r"(?<=[.!?]) (?=[A-Z`])", plain)[0].rstrip(":")
    return ""


def questions(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """The questions of the index page, each with the page that its row names first."""
    text = (root / INDEX).read_text(encoding="utf-8")
    for question, cell in re.findall(r"^\| ([^|]+\?) \| ([^|]+) \|$", text, re.MULTILINE):
        target = re.search(r"\]\(([^)#]+)", cell)
        if target is None:
            raise ValueError(f"{INDEX}: {question!r} names no page")
        path = (root / INDEX).parent / target[1]
        yield question.strip("*"), str(path.resolve().relative_to(root))
