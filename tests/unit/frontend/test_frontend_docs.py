"""docs/api.md says what the code does."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from frontend.http import errors as http_errors
from frontend.openai import foreign, openapi, requests, strangers
from frontend.openai.dialects import CHAT, COMPLETION, Dialect
from frontend.openai.strangers import UnknownFields
from tandem import errors

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import generate_field_table

TEXT = (generate_field_table.ROOT / "docs" / "api.md").read_text(encoding="utf-8")
FIELDS = json.loads(generate_field_table.DATA.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "shape",
    [
        requests.ChatRequest,
        requests.CompletionRequest,
        requests.TokenizeRequest,
        requests.DetokenizeRequest,
    ],
)
def test_every_field_is_documented(shape: type[msgspec.Struct]) -> None:
    assert [name for name in shape.__struct_fields__ if f"`{name}`" not in TEXT] == []


def test_every_refused_field_is_documented() -> None:
    tables = (
        foreign.OF_CHATS,
        foreign.OF_COMPLETIONS,
        foreign.OF_TOKENS,
        foreign.OF_MESSAGES,
        foreign.OF_PARTS,
        foreign.OF_RESPONSES,
        foreign.OF_ITEMS,
        foreign.OF_FLAT_TOOLS,
        foreign.OF_TURNS,
        foreign.OF_BLOCKS,
        foreign.OF_CLIENT_TOOLS,
    )
    names = {name for table in tables for name in table}
    assert [name for name in sorted(names) if f"`{name}`" not in TEXT] == []


def test_the_table_of_others_fields_says_what_is_done_with_each() -> None:
    assert generate_field_table.table() in TEXT


@pytest.mark.parametrize("name", ["openai", "sglang"])
def test_the_fields_of_others_are_those_of_the_installed_packages(name: str) -> None:
    """Else: scripts/generate_field_table.py --collect, and decide about what is new."""
    assert generate_field_table.installed(name) == FIELDS[name]


@pytest.mark.parametrize("dialect", [CHAT, COMPLETION], ids=lambda dialect: dialect.kind)
def test_no_field_that_others_know_is_taken_for_a_slip_of_the_pen(dialect: Dialect) -> None:
    kind = dialect.requests.kind
    names = {name for each in FIELDS.values() for name in each[dialect.kind]}
    unknown = {name: strangers.meant_by(name, kind.names) for name in names - kind.names}
    assert "request_id" in unknown
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
        return {name for name, schema in schemas.items() if "additionalProperties" in schema}

    objects = {
        "ChatMessage",
        "TextPart",
        "Tool",
        "FunctionDefinition",
        "MadeCall",
        "CalledFunction",
    }
    objects |= {"InputItem", "ItemText", "ResponseTool", "Turn", "ContentBlock", "ClientTool"}
    objects |= {"ReasoningOptions", "TextOptions"}
    bodies = {"ChatRequest", "CompletionRequest", "TokenizeRequest", "DetokenizeRequest"}
    bodies |= {"ResponseRequest", "MessageRequest", "CountRequest"}
    bodies |= {"ModerationRequest", "ModerationPart"}
    assert closed("refuse") - closed("warn") == bodies | objects
    assert {"StreamOptions", "TandemOptions"} <= closed("warn")
