"""A form that a request asks its answer to have becomes its first logits processor."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import fake_router
import pytest
import pytest_asyncio
from harness import Harness, error_of, say_hello, serving
from one_case import one_case

from tandem.errors import InvalidRequestError

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "thing", "description": "A thing.", "schema": SCHEMA, "strict": True}
FORMS: list[tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    ({"response_format": {"type": "text"}}, []),
    ({"response_format": None}, []),
    (
        {"response_format": {"type": "json_object"}},
        [("json_schema", {"schema": {"type": "object"}})],
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        [("json_schema", {"schema": SCHEMA})],
    ),
    ({"guided_json": SCHEMA}, [("json_schema", {"schema": SCHEMA})]),
    ({"guided_regex": "a+"}, [("regex", {"pattern": "a+"})]),
    ({"guided_choice": ["a", "b"]}, [("choice", {"texts": ["a", "b"]})]),
    ({"guided_grammar": 'root ::= "a"'}, [("ebnf", {"grammar": 'root ::= "a"'})]),
    (
        {"guided_regex": "a+", "logits_processors": [{"name": "other", "args": {"x": 1}}]},
        [("regex", {"pattern": "a+"}), ("other", {"x": 1})],
    ),
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "name": ""}}},
        "response_format.json_schema.name",
    ),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_regex": ""}, "guided_regex"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json"),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(model_path: Path) -> AsyncIterator[Harness]:
    """In front of workers that know the forms."""
    chosen = {"client_logits_processors": ("other",)}
    async with serving(model_path, say_hello, chosen) as harness:
        await harness.set_fleet(
            logits_processors=("json_schema", "regex", "choice", "ebnf", "other")
        )
        yield harness


@one_case(("fields", "processors"), FORMS, ids=lambda v: str(v)[:60])
async def test_a_form_reaches_the_workers_as_their_first_processor(
    frontend: Harness, fields: dict[str, Any], processors: list[Any]
) -> None:
    for ask in (frontend.chat, frontend.complete):
        response = await ask(**fields)
        assert response.status_code == 200, response.text
        sent = frontend.router.last.task.logits.processors
        assert [(each.name, json.loads(each.args_json)) for each in sent] == processors


@one_case(("fields", "param"), BAD, ids=lambda v: str(v)[:60])
async def test_what_is_no_form_is_refused_by_name(
    frontend: Harness, fields: dict[str, Any], param: str
) -> None:
    frontend.router.replies.clear()
    assert error_of(await frontend.chat(**fields)) == (400, "invalid_request", param)
    assert not frontend.router.replies


@one_case(
    ("told", "param"),
    [
        ("logits_processors[0]", "guided_regex"),
        ("logits_processors[2]", "logits_processors[1]"),
        ("logits_processors", "logits_processors"),
        ("prompt", "prompt"),
    ],
)
async def test_what_workers_refuse_is_told_by_the_clients_own_field(
    frontend: Harness, told: str, param: str
) -> None:
    async def refuse(reply: fake_router.Reply) -> None:
        reply.end(error=InvalidRequestError("it does not fit", param=told).to_proto())
        await reply.flush()

    frontend.router.script = refuse
    others = [{"name": "other"}, {"name": "other"}]
    for stream in (False, True):
        response = await frontend.chat(guided_regex="a+", logits_processors=others, stream=stream)
        assert error_of(response) == (400, "invalid_request", param)
    frontend.router.script = say_hello


async def test_a_form_that_the_workers_do_not_know_is_refused(frontend: Harness) -> None:
    await frontend.set_fleet(logits_processors=("other",))
    response = await frontend.chat(response_format={"type": "json_object"})
    assert error_of(response) == (400, "unsupported_parameter", "response_format")
