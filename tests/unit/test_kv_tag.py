"""The tag of a hand-over: what it tells apart, and how it travels."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.engine import kv_tag
from tandem.engine.kv_tag import KvTag
from tandem.errors import KvCorruptError

FACTS: dict[str, Any] = {
    "room": 77,
    "tokens": [5, 6, 7],
    "layout": 3,
    "adapter": "sql",
    "salt": "acme",
    "pages": 9,
    "contents": 4,
}


@pytest.mark.promise("S5-690")
@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"room": 78}, "of another hand-over"),
        ({"tokens": [5, 6, 8]}, "of another prompt"),
        ({"tokens": [5, 6]}, "of another prompt"),
        ({"tokens": [5, 6, 7, 0]}, "of another prompt"),
        ({"tokens": [6, 5, 7]}, "of another prompt"),
        ({"layout": 4}, "of another model or layout"),
        ({"adapter": ""}, "of another LoRA adapter"),
        ({"adapter": "law"}, "of another LoRA adapter"),
        ({"adapter": "acme"}, "of another LoRA adapter"),
        ({"salt": ""}, "of another cache salt"),
        ({"salt": "umbrella"}, "of another cache salt"),
        ({"pages": 10}, "of an earlier use of the pages"),
        ({"pages": 0}, "of an earlier use of the pages"),
        ({"contents": 5}, "damaged, incomplete or not there"),
        ({"contents": 0}, "damaged, incomplete or not there"),
    ],
    ids=str,
)
def test_a_tag_that_differs_in_one_thing_is_refused(other: dict[str, Any], said: str) -> None:
    expected = kv_tag.tag_of(**FACTS)
    with pytest.raises(KvCorruptError, match=f"^the KV that has come is {said}$"):
        kv_tag.check(kv_tag.tag_of(**{**FACTS, **other}), expected)


def test_the_same_facts_make_the_same_tag_whatever_holds_the_tokens() -> None:
    expected = kv_tag.tag_of(**FACTS)
    for kind in "Iq":
        tokens = array(kind, FACTS["tokens"])
        kv_tag.check(kv_tag.tag_of(**{**FACTS, "tokens": tokens}), expected)
    kv_tag.check(kv_tag.unpacked(expected.packed()), expected)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=8, max_size=8))
def test_each_number_of_a_tag_counts(numbers: list[int]) -> None:
    tag = KvTag(*numbers)
    assert kv_tag.unpacked(tag.packed()) == tag
    for place, name in enumerate(KvTag._fields):
        other = tag._replace(**{name: numbers[place] ^ 1})
        with pytest.raises(KvCorruptError):
            kv_tag.check(other, tag)


@pytest.mark.parametrize("data", [b"", bytes(63), bytes(65)])
def test_what_is_no_tag_is_refused_as_none(data: bytes) -> None:
    assert kv_tag.unpacked(data) is None
    with pytest.raises(KvCorruptError, match="without a tag"):
        kv_tag.check(kv_tag.unpacked(data), kv_tag.tag_of(**FACTS))


def test_numbers_of_names_and_pages_tell_them_apart_and_are_never_nothing() -> None:
    assert len({kv_tag.number_of(*facts) for facts in ((), ("a",), ("a", "b"), ("ab",))}) == 4
    pages = [kv_tag.number_of_pages(each) for each in ([], [1], [1, 2], [2, 1], [0])]
    assert len(set(pages)) == 5
    assert all(pages)
