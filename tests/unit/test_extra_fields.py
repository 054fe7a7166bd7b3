"""Extra fields have bounds, wherever they come from."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem import extra_fields
from tandem.errors import InvalidRequestError


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"a": None, "b": {"c": [1, "é", 0.5, True]}},
        {"a": nested(extra_fields.MAX_DEPTH)},
        {"n" * extra_fields.MAX_NAME_CHARACTERS: 1},
        {str(number): number for number in range(extra_fields.MAX_FIELDS)},
        {"a": "x" * (extra_fields.MAX_BYTES - 9)},
    ],
    ids=["none", "any", "deep", "a long name", "many", "large"],
)
def test_what_is_within_the_bounds_is_read(fields: dict[str, Any]) -> None:
    assert extra_fields.read(json.dumps(fields, ensure_ascii=False)) == fields


def test_nothing_is_no_field() -> None:
    assert extra_fields.read("") == {}


@pytest.mark.promise("S6-460")
@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("[]", "extra_fields"),
        ("1", "extra_fields"),
        ('{"a": NaN}', "extra_fields"),
        ('{"a"', "extra_fields"),
        ('{"a": ' + "[" * 50_000 + "]" * 50_000 + "}", "extra_fields"),
        (json.dumps({"a": 1, "b": nested(extra_fields.MAX_DEPTH + 1)}), "b"),
        (json.dumps({"n" * (extra_fields.MAX_NAME_CHARACTERS + 1): 1}), "extra_fields"),
        ('{"": 1}', "extra_fields"),
        (json.dumps({str(n): n for n in range(extra_fields.MAX_FIELDS + 1)}), "extra_fields"),
        (json.dumps({"a": "x" * extra_fields.MAX_BYTES}), "extra_fields"),
    ],
    ids=[
        "a list", "a number", "NaN", "broken", "a tower", "deep", "a long name", "no name", "many",
        "large",
    ],
)  # fmt: skip
def test_what_is_not_is_refused_and_named(text: str, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        extra_fields.read(text)
    assert refused.value.param == param
