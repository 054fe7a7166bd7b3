"""The size, nesting and number of values of processors' arguments, on both sides of each limit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.errors import InvalidRequestError
from tandem.logits.forms.limits import SpecLimits, bracket_depth
from tandem.logits.spec import SpecReader
from tandem.v1 import common_pb2

LIMITS = SpecLimits(max_bytes=1000, max_depth=8, max_values=100)


def nested(depth: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth - 1):
        value = [value]
    return {"a": value}


FIT: dict[str, dict[str, Any]] = {
    "nothing": {},
    "deep": nested(8),
    "many": {"a": [0] * 99},
    "many lists": {"a": [[]] * 99},
    "long": {"a": "x" * 991},
    "escaped": {"a": "\u65e5" * 165},
}
PASS: dict[str, tuple[dict[str, Any], str]] = {
    "deep": (nested(9), "nested deeper than 8 levels"),
    "very deep": (nested(450), "nested deeper than 8 levels"),
    "many": ({"a": [0] * 100}, "more than 100 values"),
    "many lists": ({"a": [[]] * 100}, "more than 100 values"),
    "many keys": ({str(n): 0 for n in range(101)}, "more than 100 values"),
    "long": ({"a": "x" * 992}, "more than 1000 bytes"),
    "long key": ({"x" * 1001: 0}, "more than 1000 bytes"),
    "escaped": ({"a": "\u65e5" * 166}, "more than 1000 bytes"),
}


@pytest.mark.parametrize("name", FIT)
def test_what_is_within_the_limits_is_read_as_it_was_sent(name: str) -> None:
    LIMITS.check([FIT[name]])
    assert LIMITS.parse([json.dumps(FIT[name])]) == [FIT[name]]


@pytest.mark.promise("S6-184")
@pytest.mark.parametrize("name", PASS)
def test_what_passes_a_limit_is_refused_here_and_at_the_worker(name: str) -> None:
    args, says = PASS[name]
    with pytest.raises(ValueError, match=says):
        LIMITS.check([args])
    with pytest.raises(ValueError, match=says):
        LIMITS.parse([json.dumps(args)])


def test_the_limits_hold_for_all_processors_of_a_request_together() -> None:
    with pytest.raises(ValueError, match="more than 100 values"):
        LIMITS.check([{"a": [0] * 40}] * 3)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        LIMITS.parse([json.dumps({"a": "x" * 500})] * 2)


@pytest.mark.parametrize(
    "text", ["[" * 5000 + "]" * 5000, '{"a":' * 5000, "[]", "1", "{", '{"a": ' + "9" * 5000 + "}"]
)
def test_what_a_hostile_peer_may_send_as_arguments_is_the_requests_error(text: str) -> None:
    message = common_pb2.LogitsSpec(
        processors=[common_pb2.LogitsProcessor(name="regex", args_json=text)]
    )
    reader = SpecReader()
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as error:
            reader.read(message)
        assert error.value.param == "logits_processors"


def test_the_sequences_of_a_request_are_read_once() -> None:
    reader = SpecReader()
    specs = [
        reader.read(
            common_pb2.LogitsSpec(
                processors=[common_pb2.LogitsProcessor(name="regex", args_json='{"pattern": "a"}')]
            )
        )
        for _ in range(3)
    ]
    assert specs[0] is not None
    assert specs[0] is specs[1] is specs[2]


def test_forms_are_known_by_their_names_and_arguments() -> None:
    given = [("regex", '{"pattern": "a"}'), ("regex", '{"pattern": "b"}'), ("ebnf", "{}")]
    message = common_pb2.LogitsSpec(
        processors=[
            common_pb2.LogitsProcessor(name=name, args_json=args) for name, args in given * 2
        ]
    )
    spec = SpecReader().read(message)
    assert spec is not None
    keys = [entry.key for entry in spec.named()]
    assert keys[:3] == keys[3:]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("text", "quoted", "depth"),
    [
        ("a(b(c))", False, 2),
        (r"\((a)\(", False, 1),
        ("[(((]", False, 0),
        (r"[\](((](a)", False, 1),
        ("()()()", False, 1),
        ('root ::= "(((" ("a")', True, 1),
        ('root ::= "\\"(((" # (((\n("a")', True, 1),
        ("(((", False, 3),
        (")))(", False, 0),
        ("", True, 0),
    ],
)
def test_brackets_are_counted_where_they_group(text: str, quoted: bool, depth: int) -> None:
    assert max(0, bracket_depth(text, quoted=quoted)) == depth


HALVES: dict[str, dict[str, Any]] = {
    "a text": {"pattern": "\ud800"},
    "a name": {"schema": {"\udfff": 1}},
    "deep in": {"schema": {"a": [{"b": "x\ud83dx"}]}},
}


@pytest.mark.parametrize("name", HALVES)
def test_half_of_a_surrogate_pair_is_refused_because_it_cannot_travel(name: str) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        LIMITS.check([HALVES[name]])
    with pytest.raises(ValueError, match="surrogate"):
        LIMITS.parse([json.dumps(HALVES[name])])
    assert LIMITS.parse([json.dumps({"a": "\U0001f600"})]) == [{"a": "\U0001f600"}]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not finite"):
        LIMITS.parse([f'{{"schema": {{"const": [{text}]}}}}'])
    with pytest.raises(ValueError, match="not finite"):
        LIMITS.check([{"schema": {"const": [float(text)]}}])
    assert LIMITS.parse(['{"a": 1e308}']) == [{"a": 1e308}]
