"""docs/words.md is kept: retired words are in no name and on no page, and a name has one class."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import check_measured
from one_case import one_case
from product_packages import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = (*(str(each.relative_to(ROOT)) for each in PACKAGES.values()), "monitoring")
GENERATED = "tandem/v1/"
WORDS = ROOT / "docs" / "words.md"
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_CODE = re.compile(r"^ *```.*?^ *```$|`[^`]+`|^    .*?$", re.MULTILINE | re.DOTALL)


class Retired(NamedTuple):
    word: str
    on_pages: bool
    allowed: tuple[str, ...]
    """Beginnings of the paths where the word stays."""


def table(title: str) -> list[list[str]]:
    """The rows of the table under a heading of docs/words.md."""
    section = WORDS.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


RETIRED = [
    Retired(word, "pages" in held, tuple(re.findall(r"`([a-z_/.]+)`", allowed)))
    for word, _, held, allowed in table("Retired words")
]
SEVERAL = {
    name for names, _ in table("One class of each name") for name in re.findall(r"`(\w+)`", names)
}


@cache
def words_of_names() -> list[tuple[str, str, int, set[str]]]:
    """Each name of the product: its path, itself, its line, its words."""
    return [
        (path, name, line, parts(name))
        for path, module in modules(*PRODUCT)
        for name, line in [(path.removesuffix(".py"), 1), *names(module)]
    ]


def modules(*packages: str) -> Iterator[tuple[str, ast.Module]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(GENERATED):
                yield name, _parsed(path)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def names(module: ast.Module) -> Iterator[tuple[str, int]]:
    """What a module names itself: classes, functions, arguments, variables, attributes."""
    for node in ast.walk(module):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def parts(name: str) -> set[str]:
    """The words of a name: hook_tally and HookTally both are hook and tally."""
    return {part.lower() for part in _PART.findall(name)}


@cache
def pages() -> list[tuple[str, str]]:
    """Pages without their code. The list itself names what it retires; the past stays as it was."""
    return [
        (
            str(page.relative_to(ROOT)),
            _CODE.sub(lambda code: "\n" * code[0].count("\n"), page.read_text(encoding="utf-8")),
        )
        for page in sorted([*ROOT.glob("*.md"), *check_measured.pages(ROOT)])
        if page != WORDS and page.name != "CHANGELOG.md"
    ]


def test_the_list_is_read() -> None:
    assert {"switchboard", "tally"} <= {each.word for each in RETIRED}
    assert {"Leg", "Options"} <= SEVERAL
    assert parts("_HookTallyHTTP2") == {"hook", "tally", "http"}


@one_case("retired", RETIRED, ids=lambda each: each.word)
def test_no_name_has_a_retired_word(retired: Retired) -> None:
    found = [
        f"{path}:{line} {name}"
        for path, name, line, words in words_of_names()
        if retired.word in words and not path.startswith(retired.allowed)
    ]
    assert not found


@one_case("retired", RETIRED, ids=lambda each: each.word)
def test_no_page_has_a_retired_word(retired: Retired) -> None:
    if not retired.on_pages:
        return
    word = re.compile(rf"\b{retired.word}(?:s|es)?\b", re.IGNORECASE)
    found = [
        f"{path}:{number} {line}"
        for path, text in pages()
        for number, line in enumerate(text.splitlines(), 1)
        if word.search(line)
    ]
    assert not found


def test_a_name_is_one_public_class_of_the_product_or_a_listed_one() -> None:
    places = [(name, path) for path, name in _classes(*PRODUCT) if not name.startswith("_")]
    several = {name for name, count in Counter(name for name, _ in places).items() if count > 1}
    assert not sorted(place for place in places if place[0] in several - SEVERAL)
    assert not SEVERAL - several, "listed, and one class's alone"


def _classes(*packages: str) -> Iterator[tuple[str, str]]:
    """Path and name of each class at the top of a module."""
    for path, module in modules(*packages):
        yield from ((path, node.name) for node in module.body if isinstance(node, ast.ClassDef))
