"""The reader of JSON in pieces takes what Python's own reader takes, and nothing else."""

from __future__ import annotations

import json
from typing import Any, Never

from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_case import one_case

from tandem_answers.parsing.json_reader import LONGEST_SCALAR, JsonReader

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
TEXTS = st.lists(
    st.sampled_from([*'{}[]:," \n\\u/b01259.-+eE', "true", "false", "null", '"a"', "\x01", "é"]),
    max_size=14,
).map("".join)  # fmt: skip


def read(text: str, size: int) -> tuple[str, JsonReader]:
    """What the reader takes of a text that comes in pieces of `size`, and the reader."""
    reader = JsonReader()
    taken = waiting = ""
    for at in range(0, len(text), size):
        waiting += text[at : at + size]
        end = reader.read(waiting, 0)
        taken += waiting[:end]
        waiting = waiting[end:]
        if reader.done or reader.faulty:
            break
    return taken, reader


def is_json(text: str) -> bool:
    def refuse(constant: str) -> Never:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@given(TEXTS, st.integers(1, 5))
@example("[1.]", 1)
@example("-", 1)
@example('{"a" "b"}', 1)
@example("[01]", 2)
@settings(max_examples=1000)
def test_what_is_taken_for_a_value_is_one(text: str, size: int) -> None:
    # The space ends a number.
    taken, reader = read(text + " ", size)
    assert (text + " ").startswith(taken)
    if reader.done:
        assert is_json(taken)
    assert reader.done or not is_json(text)
    assert read(text + " ", 100)[0] == taken


@given(VALUES, st.integers(1, 9), st.booleans(), st.sampled_from([None, 2]))
@settings(max_examples=300)
def test_every_value_is_taken_to_its_end(value: Any, size: int, ascii_: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    taken, reader = read(text + " and more", size)
    assert taken == text
    assert reader.done
    assert not reader.faulty


@one_case(
    "text",
    ['{"a":1,}', "[1,]", "{1:2}", '{"a"}', '["\\x"]', '["\\u12g4"]', '["\n"]', "[1}", "[truee]",
     "[NaN]", "[.5]", "[+1]", "[1e]", "[--1]", "]", ",", "['a']", '{"a":}', "}"],
)  # fmt: skip
def test_a_fault_is_seen_where_it_is(text: str) -> None:
    taken, reader = read(text + "     ", 1)
    assert reader.faulty
    assert len(taken) < len(text)


def test_an_escape_that_is_not_whole_yet_is_no_fault() -> None:
    for text in ('"\\', '"\\u', '"\\u00', '"\\u00e'):
        taken, reader = read(text, 100)
        assert (taken, reader.faulty, reader.done) == ('"', False, False)


def test_a_number_may_be_so_long_and_no_longer() -> None:
    assert read("9" * LONGEST_SCALAR + " ", 3)[1].done
    for size in (3, 2000):
        assert read("9" * (LONGEST_SCALAR + 1), size)[1].faulty
