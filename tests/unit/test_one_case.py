"""A test of a table fails with the name of every entry that breaks its rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_case import EntriesBroke, one_case


def outcome(test: Any, **fixtures: Any) -> list[str]:
    """What the entries that broke the rule said."""
    with pytest.raises(EntriesBroke) as caught:
        test(**fixtures)
    return caught.value.broken


def test_every_entry_that_breaks_the_rule_is_named() -> None:
    @one_case(("small", "large"), [(1, 2), (3, 1), (2, 3), pytest.param(9, 8, id="nine")])
    def rule(small: int, large: int) -> None:
        assert small < large

    first, second = outcome(rule)
    assert first.startswith("3-1: test_one_case.py:")
    assert "assert 3 < 1" in first
    assert second.startswith("nine: ")


def test_an_error_of_any_kind_is_its_entry_s() -> None:
    @one_case("key", ["a", "b"])
    def rule(key: str) -> None:
        if key == "b":
            with pytest.raises(ValueError, match="never"):
                pass
        {}[key]

    first, second = outcome(rule)
    assert first.endswith("KeyError: 'a'")
    assert second.startswith("b: ")
    assert "DID NOT RAISE" in second


def test_two_tables_make_all_pairs() -> None:
    @one_case("left", ["a", "b"])
    @one_case("right", lambda: ["c", "d"])
    def rule(left: str, right: str) -> None:
        assert left + right in ("ac", "bd")

    assert [each.partition(": ")[0] for each in outcome(rule)] == ["a, d", "b, c"]


@one_case("name", ["a", "b"])
def test_fixtures_are_given_beside_an_entry(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()


@one_case("name", ["a", "b"])
async def test_a_coroutine_is_awaited(name: str) -> None:
    assert name


async def test_a_coroutine_s_entries_are_named_too() -> None:
    @one_case("name", ["a", "b"])
    async def rule(name: str) -> None:
        assert name == "a"

    with pytest.raises(EntriesBroke, match="1 of 2 entries broke the rule:\nb: "):
        await rule()


def test_an_empty_table_is_no_success() -> None:
    @one_case("name", [])
    def rule(name: str) -> None:
        """Never called."""

    with pytest.raises(AssertionError, match="no entries"):
        rule()
