"""Values that a model wrote without their types get those of the tool's schema."""

from __future__ import annotations

from typing import Any

import pytest
from one_case import one_case
from parsed_answers import check_cuts
from recorded_answers import RECORDED

from tandem_answers.parsing.families import FAMILIES
from tandem_answers.parsing.formats import Xml
from tandem_answers.parsing.schemas import MOST_SCHEMAS, types_of_property

XML = {name: xml for name in RECORDED if isinstance(xml := FAMILIES[name].calls[0], Xml)}


def written(xml: Xml, key: str, value: str) -> str:
    """A call of `f` with one argument."""
    return (
        f"{xml.inside}{xml.begin}f{xml.name_end}{xml.key}{key}{xml.key_end}{xml.value}"
        f"{value}{xml.value_end}{xml.end}"
    )


SAID: list[tuple[str, dict[str, Any], Any]] = [
    ("['x', 'y']", {"type": "array"}, ["x", "y"]),
    ("{'x': True, 'y': None}", {"type": "object"}, {"x": True, "y": None}),
    ("{'x': true, \"y\": null}", {"type": "object"}, {"x": True, "y": None}),
    ('{"x": True}', {}, {"x": True}),
    ("['it\\'s', 'a\nb']", {"type": ["array", "null"]}, ["it's", "a\nb"]),
    ("['x']", {"type": "string"}, "['x']"),
    ("('x', 1)", {"type": "array"}, ["x", 1]),
    ("('x', 1)", {}, "('x', 1)"),
    ("['x', y]", {"type": "array"}, "['x', y]"),
    ("None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
    ("None", {"type": "string"}, "None"),
    ('{"x": "/\\$USER"}', {"type": "object"}, {"x": "/\\$USER"}),
    ("{1, 2}", {"type": "array"}, "{1, 2}"),
    ("__import__('os')", {}, "__import__('os')"),
    ("3", {"$ref": "#/$defs/Text"}, "3"),
    ("3", {"$ref": "#/$defs/Number"}, 3),
    ("3", {"allOf": [{"$ref": "#/$defs/Text"}], "description": "x"}, "3"),
    ("3", {"anyOf": [{"$ref": "#/$defs/MaybeText"}, {"type": "null"}]}, "3"),
    ("3", {"$ref": "#/$defs/a~1b%20c"}, "3"),
    ("3", {"$ref": "#/properties/other"}, "3"),
    ("3", {"const": "3"}, "3"),
    ("null", {"type": "integer", "nullable": True}, None),
    ("3", {"$ref": "#/$defs/Loop"}, 3),
    ("3", {"$ref": "#/$defs/Nowhere"}, 3),
    ("3", {"$ref": "https://example.org/schema.json"}, 3),
]
DEFINITIONS = {
    "Text": {"type": "string"},
    "Number": {"type": "number"},
    "MaybeText": {"oneOf": [{"$ref": "#/$defs/Text"}, {"$ref": "#/$defs/MaybeText"}]},
    "a/b c": {"enum": ["3", "4"]},
    "Loop": {"$ref": "#/$defs/Loop"},
}


@pytest.mark.promise("S5-627")
@one_case("family", XML)
def test_a_value_is_what_it_says_where_the_schema_allows_it(family: str) -> None:
    for value, declared, read in SAID:
        schema = {
            "$defs": DEFINITIONS,
            "properties": {"k": declared, "other": {"type": "string"}},
        }
        text = written(XML[family], "k", value)
        check_cuts(family, text, [("f", {"k": read})], every=7, tools={"f": schema})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"k": {"type": "string"}}}}},
        {"anyOf": [{"properties": {"k": {"type": "string"}}}, {"properties": {}}]},
        {"additionalProperties": {"type": "string"}},
        {"properties": {"k": {"$ref": "#/$defs/A/0"}}, "$defs": {"A": [{"type": "string"}]}},
    ],
)
def test_a_property_is_found_wherever_the_schema_declares_it(schema: dict[str, Any]) -> None:
    assert types_of_property(schema, "k") == {"string"}


@pytest.mark.promise("S5-627")
def test_of_a_schema_with_very_many_alternatives_nothing_is_known() -> None:
    """A client's schema costs no more than it may, however its parts refer to each other."""
    many = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{m}"} for m in range(300)]} for n in range(300)}
    schema = {"$defs": many, "properties": {"k": {"$ref": "#/$defs/d0"}}}
    assert types_of_property(schema, "k") == frozenset()
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(MOST_SCHEMAS // 2):
        deep = {"allOf": [deep]}
    assert types_of_property({"properties": {"k": deep}}, "k") == {"string"}
    for _ in range(MOST_SCHEMAS * 40):
        deep = {"allOf": [deep]}
    assert types_of_property({"properties": {"k": deep}}, "k") == frozenset()


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"k": {"$ref": 5}}},
        {"properties": {"k": {"$ref": "#/properties/k/" + "a/" * 1000}}},
        {"properties": {"k": {"$ref": "#/$defs/A/99999999999"}}, "$defs": {"A": []}},
        {"properties": {"k": {"$ref": "#/$defs/A/²"}}, "$defs": {"A": [1]}},
        {"properties": {"k": {"anyOf": {"a": 1}, "enum": 5, "type": {"a": 1}}}},
        {"properties": {"k": {"type": [["string"], 5]}}},
        {"properties": {"k": True}, "additionalProperties": False},
    ],
)
def test_a_schema_that_is_none_says_nothing(schema: dict[str, Any]) -> None:
    assert types_of_property(schema, "k") == frozenset()


# --- where a value ends ---


@pytest.mark.parametrize("family", ["glm45", "hunyuan", "deepseek_v32", "deepseek_v4"])
def test_a_value_without_its_end_keeps_to_its_own_call(family: str) -> None:
    xml = XML[family]
    one = written(xml, "k", "a").replace(xml.value_end, "")
    check_cuts(family, one + one, [("f", {"k": "a"})] * 2, tools={"f": {}})


@one_case("family", XML)
def test_a_value_may_have_the_end_of_a_call_in_it(family: str) -> None:
    """Its own end marker says so, where it comes before the next value."""
    end = XML[family].end.split()[0]
    text = written(XML[family], "k", f"a{end} b")
    check_cuts(family, text, [("f", {"k": f"a{end} b"})], tools={"f": {}})
