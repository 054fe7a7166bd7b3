"""A form that a request asks its answer to have becomes its first logits processor."""

from __future__ import annotations

import json
from typing import Any

import fake_router
import pytest
from harness import Harness, Start, error_of, say_hello

from tandem.errors import InvalidRequestError

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


@pytest.fixture
async def frontend(start: Start) -> Harness:
    """In front of workers that know the forms."""
    frontend = await start(say_hello, client_logits_processors=("other",))
    names = ("json_schema", "regex", "choice", "ebnf", "other")
    frontend.router.change_fleet(frontend.fleet(ready_pairs=0))
    await frontend.until("/ready", 503)
    frontend.router.change_fleet(frontend.fleet(logits_processors=names))
    await frontend.until("/ready", 200)
    return frontend


@pytest.mark.parametrize(("fields", "processors"), FORMS, ids=lambda v: str(v)[:60])
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
async def test_a_form_reaches_the_workers_as_their_first_processor(
    frontend: Harness, fields: dict[str, Any], processors: list[Any], chat: bool
) -> None:
    response = await (frontend.chat if chat else frontend.complete)(**fields)
    assert response.status_code == 200, response.text
    (reply,) = frontend.router.replies.values()
    sent = reply.task.logits.processors
    assert [(each.name, json.loads(each.args_json)) for each in sent] == processors


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda v: str(v)[:60])
async def test_what_is_no_form_is_refused_by_name(
    frontend: Harness, fields: dict[str, Any], param: str
) -> None:
    assert error_of(await frontend.chat(**fields)) == (400, "invalid_request", param)
    assert not frontend.router.replies


async def test_a_form_that_the_workers_do_not_know_is_refused(start: Start) -> None:
    frontend = await start(say_hello)
    response = await frontend.chat(response_format={"type": "json_object"})
    assert error_of(response) == (400, "unsupported_parameter", "response_format")


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ("logits_processors[0]", "guided_regex"),
        ("logits_processors[2]", "logits_processors[1]"),
        ("logits_processors", "logits_processors"),
        ("prompt", "prompt"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_workers_refuse_is_told_by_the_clients_own_field(
    frontend: Harness, told: str, param: str, stream: bool
) -> None:
    async def refuse(reply: fake_router.Reply) -> None:
        reply.end(error=InvalidRequestError("it does not fit", param=told).to_proto())
        await reply.flush()

    frontend.router.script = refuse
    others = [{"name": "other"}, {"name": "other"}]
    response = await frontend.chat(guided_regex="a+", logits_processors=others, stream=stream)
    assert error_of(response) == (400, "invalid_request", param)
