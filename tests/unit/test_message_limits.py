"""How much of what waits for a stream leaves with one message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.message_limits import fill_message


@pytest.mark.promise("S6-186")
@given(
    sizes=st.lists(st.integers(0, 20)),
    most=st.integers(1, 50),
    items=st.none() | st.integers(1, 5),
)
def test_a_message_ends_with_the_item_that_fills_it(
    sizes: list[int], most: int, items: int | None
) -> None:
    count, total = fill_message(sizes, most, items)
    assert total == sum(sizes[:count])
    assert count <= (items or len(sizes))
    assert not count or sum(sizes[: count - 1]) < most
    assert total >= most or count in (items, len(sizes)), "more fits"


def test_items_that_no_message_takes_are_not_asked_for() -> None:
    """As they are asked for they may move to the message."""
    asked = []

    def moved() -> Iterator[int]:
        for size in (10, 0, 30, 5):
            asked.append(size)
            yield size

    assert fill_message(moved(), 40) == (3, 40)
    assert fill_message(moved(), 41, 2) == (2, 10)
    assert asked == [10, 0, 30, 10, 0]


def test_an_item_larger_than_a_message_is_one_alone() -> None:
    assert fill_message([1_000, 1], 40) == (1, 1_000)
    assert fill_message([], 40) == (0, 0)
