"""The JSON guard against the standard library's parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hook_driver import Feed, equal_parts, feed
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case

from tandem.errors import LoadError
from tandem_guardrails.json_only import JsonOnly

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab"\\\n\x07é😀/', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"é', max_size=2), inner),
    max_leaves=8,
)
JSON = st.builds(
    json.dumps,
    VALUES,
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 1]),
)


@settings(max_examples=300)
@given(text=JSON, size=st.integers(1, 6))
def test_json_passes_untouched_with_its_tokens(text: str, size: int) -> None:
    parts = equal_parts(text, size)
    shown = feed(JsonOnly(), parts)
    assert shown.text == text
    assert shown.reason is None
    assert len(shown.tokens) == len(parts)


@one_case(
    ("text", "shown", "reason"),
    [
        ('{"a": 1} and more', '{"a": 1}', "json_complete"),
        ('{"a": 1}\n', '{"a": 1}', "json_complete"),
        ("12 ", "12", "json_complete"),
        ('```json\n{"a": 1}', "", "json_only"),
        ('{"a": tru!', '{"a": tru', "json_only"),
        ("[1, 2}", "[1, 2", "json_only"),
        ("[01]", "[0", "json_only"),
        ("NaN", "", "json_only"),
        ("12x", "12", "json_complete"),
        ('{"a": [1, ', '{"a": [1, ', "json_truncated"),
        ("-", "-", "json_truncated"),
        ("", "", "json_truncated"),
        ('"\x01"', '"', "json_only"),
        ("12", "12", None),
        (' {"a":{}}', ' {"a":{}}', None),
    ],
)
def test_the_answer_ends_where_it_stops_being_json(
    text: str, shown: str, reason: str | None
) -> None:
    for size in (1, 3, 100):
        got = feed(JsonOnly(), equal_parts(text, size))
        assert (got.text, got.reason) == (shown, reason)


def test_a_longer_value_than_allowed_is_cut() -> None:
    for size in (1, 100):
        parts = equal_parts("[1, 2, 3]", size)
        got = feed(JsonOnly(max_characters=5), parts)
        assert (got.text, got.reason) == ("[1, 2", "json_too_long")
        assert feed(JsonOnly(max_characters=9), parts).reason is None


def test_objects_only_refuses_other_values() -> None:
    hook = JsonOnly(objects_only=True)
    assert feed(hook, [("[{}]", 1)]).reason == "json_only"
    assert feed(hook, [('{"a":[1]}', 1)]).reason is None


def test_prefill_does_not_take_its_chunk_for_the_whole_answer() -> None:
    assert feed(JsonOnly(), [('{"', 1)], phase="prefill").reason is None
    assert feed(JsonOnly(), [("Sure", 1)], phase="prefill").reason == "json_only"


def test_sequences_are_apart_and_forgotten() -> None:
    hook = JsonOnly()
    first, second = Feed(hook, request_id=1), Feed(hook, request_id=2)
    first.push("{")
    second.push("[1")
    first.push("}", final=True)
    assert first.shown.reason is None
    hook.close(2)
    assert len(hook._sequences) == 0


@pytest.mark.parametrize("config", [{"max_characters": 0}, {"objects_only": 1}])
def test_wrong_settings_are_refused_by_name(config: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match=next(iter(config))):
        JsonOnly(**config)
