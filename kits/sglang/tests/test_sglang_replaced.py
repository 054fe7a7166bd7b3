"""Design 0003 lists each name of SGLang's that Tandem replaces: counted by running."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sglang_sides

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(300)]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "design" / "0003-embedding-sglang.md"
MOST = 8
"""Names that a default engine replaces."""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return sglang_sides.answers(sglang_sides.HERE / "sglang_replaced_side.py")


@pytest.fixture(scope="module")
def listed() -> dict[str, set[str]]:
    """The names of the page's table, by what has them replaced."""
    table = PAGE.read_text(encoding="utf-8").partition("## What is replaced in SGLang\n")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", table.partition("\n## ")[0], re.MULTILINE)
    return {when: {name for name, each in rows if each == when} for _, when in rows}


@pytest.mark.promise("S5-683")
def test_an_engine_replaces_few_names_of_sglang_unless_an_option_asks(
    found: dict[str, Any],
) -> None:
    assert len(found["default"]) == MOST
    assert found["tensor ranks"] == found["pipeline"] == found["default"]
    assert len(found["mooncake"]) == MOST
    assert len(found["seeded_sampling false"]) == MOST - 1


@pytest.mark.promise("S5-683")
def test_0003_lists_every_name_of_sglang_that_is_replaced(
    found: dict[str, Any], listed: dict[str, set[str]]
) -> None:
    always, seeded, plain = listed["always"], listed["`seeded_sampling`"], listed["no drafts"]
    nixl, mooncake = listed["`transfer_backend` nixl"], listed["`transfer_backend` mooncake"]
    expected = {
        "default": always | seeded | plain | nixl,
        "mooncake": always | seeded | plain | mooncake,
        "seeded_sampling false": always | plain | nixl,
        "speculative": always | seeded | nixl | listed["drafts"],
        "data_parallel": listed["`data_parallel`"],
    }
    assert {way: set(found[way]) for way in expected} == expected
