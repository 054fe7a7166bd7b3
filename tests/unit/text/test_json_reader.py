"""The reader of JSON in pieces takes what Python's own reader takes, and nothing else."""

from __future__ import annotations

import json
from typing import Any, Never

from hypothesis import example, given, settings
from hypothesis import strategies as st
from one_case import one_case

from tandem.text.json_reader import JsonReader

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
JSON = st.builds(json.dumps, VALUES, ensure_ascii=st.booleans(), indent=st.sampled_from([None, 1]))
TEXTS = st.lists(
    st.sampled_from([*'{}[]:," \n\\u/b01259.-+eE', "true", "false", "null", '"a"', "\x01", "é"]),
    max_size=14,
).map("".join)  # fmt: skip


def read(text: str, size: int) -> tuple[str, JsonReader]:
    """What the reader takes of a text that comes in pieces of `size`, and the reader."""
    reader = JsonReader()
    taken = ""
    for at in range(0, len(text), size):
        piece = text[at : at + size]
        end = reader.read(piece)
        taken += piece[:end]
        if end < len(piece):
            break
    return taken, reader


def mended(text: str, size: int) -> tuple[str, JsonReader]:
    """The same of a text whose strings are mended; what is not read comes again with more."""
    reader = JsonReader()
    given = waiting = ""
    for at in range(0, len(text), size):
        waiting += text[at : at + size]
        written, end = reader.mended(waiting, 0)
        given += written
        waiting = waiting[end:]
        if reader.over or reader.faulty:
            break
    return given, reader


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
    if reader.over:
        assert is_json(taken)
    assert reader.over or not is_json(text)
    assert read(text + " ", 100)[0] == taken


@given(VALUES, st.integers(1, 9), st.booleans(), st.sampled_from([None, 2]))
@settings(max_examples=300)
def test_every_value_is_taken_to_its_end(value: Any, size: int, ascii_: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    taken, reader = read(text + " and more", size)
    assert taken == text
    assert reader.over
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


@one_case("text", ['"\\', '"\\u', '"\\u00', '"\\u00e'])
def test_a_part_of_an_escape_is_no_fault_and_is_not_given_out_before_it_is_whole(text: str) -> None:
    for size in (1, 2, 100):
        assert read(text, size)[0] == text
        given, reader = mended(text, size)
        assert (given, reader.faulty, reader.over) == ('"', False, False)
        assert mended(text + "g", size)[0] == '"\\\\' + text[2:] + "g"


@given(st.text('ab"\\\n\x07é/u0019', max_size=9), st.integers(1, 5))
@settings(max_examples=1000)
def test_a_string_is_mended_alike_in_every_pieces_and_says_what_was_written(
    text: str, size: int
) -> None:
    given, reader = mended(f'["{text}"]', size)
    assert given == mended(f'["{text}"]', 100)[0]
    if reader.over:
        assert is_json(given)


@settings(max_examples=500)
@given(text=JSON, place=st.integers(0, 60), other=st.sampled_from('{}[]",:0-+.eE1tn\\u \n\x01aN'))
def test_a_changed_text_is_complete_just_when_the_parser_takes_it(
    text: str, place: int, other: str
) -> None:
    place = min(place, len(text))
    changed = text[:place] + other + text[place + 1 :]
    reader = JsonReader()
    read = reader.read(changed)
    if is_json(changed):
        assert changed[read:].strip() == ""
        assert reader.complete
    else:
        assert changed[read:].strip() or not reader.complete


@settings(max_examples=300)
@given(text=st.text('{}[]",:01-.etrue\\ ', max_size=8))
def test_what_is_read_can_still_become_json_and_one_more_character_cannot(text: str) -> None:
    """The rest that would complete a beginning is built from what the reader says is open."""
    read = JsonReader().read(text)
    assert can_become_json(text[:read])
    if read < len(text):
        assert not can_become_json(text[: read + 1]) or is_json(text[:read])


def can_become_json(text: str, depth: int = 4) -> bool:
    if is_json(text):
        return True
    closing = close_all(text)
    rests = [
        "",
        "0",
        '"',
        "0000",
        '0000"',
        "\\",
        '\\"',
        '"":0',
        '":0',
        ":0",
        "true",
        "rue",
        "ue",
        "e",
    ]
    rests += ["false", "alse", "lse", "se", "null", "ull", "ll", "l", '000"', '00"', '0"', 'n"']
    rests += [first + second for first in rests for second in (":0", "")]
    return any(is_json(text + rest + closing) for rest in rests)


def close_all(text: str) -> str:
    """The closing brackets of what is open, strings apart."""
    stack, inside, escaped = [], False, False
    for character in text:
        if inside:
            inside = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            inside = True
        elif character in "{[":
            stack.append("}" if character == "{" else "]")
        elif character in "}]" and stack:
            stack.pop()
    return "".join(reversed(stack))
