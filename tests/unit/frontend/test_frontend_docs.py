"""docs/api.md says what the code does."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator

from tandem import errors
from tandem_frontend.http import errors as http_errors
from tandem_frontend.openai import foreign, openapi, requests, strangers
from tandem_frontend.openai.strangers import UnknownFields

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import generate_field_table

TEXT = (generate_field_table.ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BODIES, GENERATING = generate_field_table.BODIES, generate_field_table.GENERATING
TABLE = generate_field_table.table()
FIELDS = json.loads(generate_field_table.DATA.read_text(encoding="utf-8"))


def test_every_field_that_no_table_has_is_documented() -> None:
    fields = requests.DetokenizeRequest.__struct_fields__
    assert [name for name in fields if f"`{name}`" not in TEXT] == []


@pytest.mark.promise("S5-638")
def test_the_tables_say_of_each_field_and_type_of_every_dialect_what_is_done_with_it() -> None:
    assert TABLE in TEXT
    kinds = [inner for body in BODIES.values() for inner in _kinds(body.kind)]
    names = {name for kind in kinds for name in (*kind.names, *kind.left_out)} | {*foreign.VALUES}
    assert len(names) > 250
    assert [name for name in sorted(names) if f"`{name}`" not in TABLE] == []


def _kinds(kind: strangers.KnownObject) -> Iterator[strangers.KnownObject]:
    yield kind
    for inner in kind.inner.values():
        yield from _kinds(inner)


ROWS = re.compile(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", re.MULTILINE)


@pytest.mark.promise("S5-638")
@pytest.mark.parametrize("endpoint", BODIES)
def test_a_body_is_read_as_the_table_says(endpoint: str) -> None:
    """Of each field that the table has dropped or refused: no value of it is read otherwise."""
    body = BODIES[endpoint]
    told = dict(ROWS.findall(TABLE.partition("| Object |")[0]))
    assert told.keys() >= body.kind.names
    for name in body.kind.foreign.keys() - body.kind.fields:
        (said,) = [
            said
            for where, said in _answers(told[name])
            if endpoint in where or ("generating" in where and endpoint in GENERATING)
        ]
        given = msgspec.json.encode({name: {"x": "y" * 100}})
        seen = strangers.Strangers(strangers.FieldRules("refuse"))
        if said.startswith("dropped"):
            seen.check(given, body.kind)
            assert seen.ignored == (name,)
        else:
            assert said.startswith("refused")
            with pytest.raises(errors.UnsupportedError):
                seen.check(given, body.kind)


def _answers(cell: str) -> Iterator[tuple[list[str], str]]:
    """Endpoints, and what they do with a field."""
    for match in re.finditer(
        r"(?:^|; )([\w`/, ]+): ((?:applied|dropped|refused).*?)(?=; |$)", cell
    ):
        yield match[1].split(", "), match[2]


@pytest.mark.promise("S5-638")
@pytest.mark.parametrize("endpoint", GENERATING)
def test_no_field_that_another_dialect_applies_is_unknown(endpoint: str) -> None:
    """It would change the answer there: it is applied, refused or a hint, and never passed over as
    a field of nobody's.
    """
    applied = {name for other in GENERATING for name in BODIES[other].kind.fields}
    assert sorted(applied - BODIES[endpoint].kind.names) == []


@pytest.mark.promise("S5-638")
def test_the_body_of_a_message_can_be_counted_as_it_is() -> None:
    generated, counted = BODIES["messages"].kind, BODIES["`count_tokens`"].kind
    assert sorted(generated.fields - counted.names) == []


@pytest.mark.parametrize("name", ["openai", "sglang"])
def test_the_fields_of_others_are_those_of_the_installed_packages(name: str) -> None:
    """Else: scripts/generate_field_table.py --collect, and decide about what is new."""
    assert generate_field_table.installed(name) == FIELDS[name]


@pytest.mark.parametrize(
    ("key", "endpoint"),
    [
        ("chat", "chats"),
        ("completion", "completions"),
        ("response", "responses"),
        ("message", "messages"),
        ("count", "`count_tokens`"),
    ],
)
def test_no_field_that_others_know_is_taken_for_a_slip_of_the_pen(key: str, endpoint: str) -> None:
    kind = BODIES[endpoint].kind
    names = {name for each in FIELDS.values() for name in each.get(key, ())}
    assert len(names) > 10
    unknown = {name: strangers.meant_by(name, kind.names) for name in names - kind.names}
    assert [name for name, meant in unknown.items() if meant] == []


def test_every_path_is_documented() -> None:
    paths = [path.replace("{model}", "{id}") for path in openapi.describe()["paths"]]
    assert [path for path in paths if path not in TEXT] == []


def test_every_error_is_documented_with_its_status_and_type() -> None:
    row = re.compile(r"^\| `(\w+)` \| (\d+|–) \| `(\w+)` \|", re.MULTILINE)
    documented = {code: (status, kind) for code, status, kind in row.findall(TEXT)}
    assert http_errors.NotFoundError.code in documented
    real = {cls.code: (str(cls.http_status), cls.kind) for cls in _tree(errors.TandemError)}
    for code in ("cancelled", "slow_client"):  # nobody is left to be told a status
        real[code] = ("–", real[code][1])
    assert documented == real


def _tree(base: type[errors.TandemError]) -> list[type[errors.TandemError]]:
    return [base, *(found for child in base.__subclasses__() for found in _tree(child))]


def test_the_description_says_where_unknown_fields_pass() -> None:
    def closed(unknown_fields: UnknownFields) -> set[str]:
        schemas = openapi.describe(strangers.FieldRules(unknown_fields))["components"]["schemas"]
        return {
            name
            for name, schema in schemas.items()
            if "additionalProperties" in schema.get("anyOf", [schema])[0]
        }

    objects = {
        "ChatMessage",
        "TextPart",
        "Tool",
        "FunctionDefinition",
        "MadeCall",
        "CalledFunction",
    }
    objects |= {"InputItem", "ItemText", "ResponseTool", "Turn", "ContentBlock", "ClientTool"}
    objects |= {"ReasoningOptions", "TextOptions", "NvExt", "AgentHints", "SessionControl"}
    bodies = {"ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"}
    bodies |= {"ResponseRequest", "MessageRequest", "CountRequest"}
    bodies |= {"ModerationRequest", "ModerationPart"}
    assert closed("refuse") - closed("warn") == bodies | objects
    assert {"StreamOptions", "TandemOptions"} <= closed("warn")


_TYPES = ["custom", "function", "namespace", "web_search", "web_search_20260101", "x"]
_DROPPED = {
    "Tool": ("custom", "web_search", "web_search_20260101"),
    "ResponseTool": ("web_search", "web_search_20260101"),
    "ClientTool": ("web_search", "web_search_20260101"),
}


@pytest.mark.promise("S5-639")
@pytest.mark.parametrize("name", _DROPPED)
@pytest.mark.parametrize("unknown", ["refuse", "warn"])
def test_the_description_says_which_tools_are_left_out(unknown: UnknownFields, name: str) -> None:
    schemas = openapi.describe(strangers.FieldRules(unknown))["components"]["schemas"]
    _, left_out = schemas[name]["anyOf"]
    validator = Draft202012Validator(left_out)
    dropped = tuple(type for type in _TYPES if validator.is_valid({"type": type}))
    assert dropped == _DROPPED[name] + (("x",) if unknown == "warn" else ())
    assert not validator.is_valid({})


def test_the_version_of_a_type_is_found_in_one_pass() -> None:
    """Trying each of a million characters as the version's beginning would take hours."""
    name = "_" * 1_000_000 + "x"
    assert strangers.without_version(name) == name
    assert strangers.without_version("web_search_20260101") == "web_search"
