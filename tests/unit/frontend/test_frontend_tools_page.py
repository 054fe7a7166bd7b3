"""docs/tools.md lists the families that the frontend knows, and what it knows of each."""

from __future__ import annotations

import re
from pathlib import Path

from tandem_answers.parsing.families import FAMILIES, Family
from tandem_answers.parsing.formats import Attributed, Nested, Pythonic, Unquoted, Xml

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "tools.md").read_text(encoding="utf-8")


def test_the_page_lists_each_family_as_the_table_has_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (yes|no) \| (\w+) \|$", PAGE, re.MULTILINE)
    expected = [
        (name, "yes" if family.thinking else "no", arguments(family))
        for name, family in sorted(FAMILIES.items())
    ]
    assert rows == expected


def arguments(family: Family) -> str:
    """What its calls' arguments are written in."""
    if not family.calls:
        return "none"
    kind = type(family.calls[0])
    if kind in (Xml, Nested, Attributed):
        return "XML"
    return {Pythonic: "Python", Unquoted: "own"}.get(kind, "JSON")


def test_the_page_names_the_families_whose_calls_end_reasoning() -> None:
    said = re.search(r"forgot to end in\n(.+?); in the others", PAGE, re.DOTALL)
    assert said is not None
    ending = {name for name, family in FAMILIES.items() if family.call_ends_thought}
    assert set(re.findall(r"`(\w+)`", said[1])) == ending
