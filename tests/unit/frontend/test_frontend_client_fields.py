"""Requests as clients' libraries and other servers' clients send them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from harness import CHAT, Harness, error_of, say_hello, serving
from one_case import one_case
from openai.types.chat import ChatCompletionMessage

from tandem_frontend.openai import foreign

pytestmark = pytest.mark.asyncio(loop_scope="module")
HEADER = "x-tandem-ignored-fields"
USER = {"role": "user", "content": "Hello"}
ASSISTANT = {"role": "assistant", "content": "Hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model_path: Path) -> AsyncIterator[Harness]:
    async with serving(model_path, say_hello, {}) as harness:
        yield harness


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict(model_path: Path) -> AsyncIterator[Harness]:
    async with serving(model_path, say_hello, {"unknown_fields": "refuse"}) as harness:
        yield harness


def served(response: httpx.Response) -> None:
    """Nothing was wrong with the request, and nothing of it is unknown."""
    assert response.status_code == 200, response.text
    assert HEADER not in response.headers


def taken(response: httpx.Response, *dropped: str) -> None:
    """Nothing was wrong with the request, and the head names what was dropped."""
    assert response.status_code == 200, response.text
    assert set(response.headers.get(HEADER, "").split(", ")) - {""} == {*dropped}


# --- messages that are sent back ---

SENT_BACK: dict[str, dict[str, Any]] = {
    "null members": dict.fromkeys(
        ("refusal", "audio", "annotations", "function_call", "tool_calls", "name")
    ),
    "empty members": {
        "refusal": "",
        "annotations": [],
        "tool_calls": [],
        "function_call": {},
        "audio": {},
    },
    "openai-node's": {"refusal": None, "parsed": {"deep": [1, {"a": "b" * 100}]}},
    "litellm's": {"provider_specific_fields": {"refusal": None}, "reasoning_content": "Well."},
    "without a call": {"function_call": {"name": "", "arguments": ""}, "tool_call_id": ""},
    "a reasoning server's": {"reasoning": "Well.", "reasoning_content": None},
}


@pytest.mark.promise("S6-302")
@pytest.mark.parametrize("members", SENT_BACK.values(), ids=SENT_BACK.keys())
async def test_a_message_of_a_clients_library_is_read_as_what_it_says(
    strict: Harness, members: dict[str, Any]
) -> None:
    plain = [USER, ASSISTANT, USER]
    served(await strict.chat(messages=plain))
    expected = strict.router.last.task.prompt_token_ids
    dropped = [f"messages[].{name}" for name in members if name in foreign.OF_MESSAGES]
    dropped = [name for name in dropped if "parsed" in name or "provider" in name]
    taken(await strict.chat(messages=[USER, ASSISTANT | members, USER]), *dropped)
    assert strict.router.last.task.prompt_token_ids == expected
    tokens = await strict.http.post("/tokenize", json={"messages": [USER, ASSISTANT | members]})
    taken(tokens, *dropped)


@pytest.mark.promise("S6-302")
async def test_a_call_of_a_clients_library_is_read_as_what_it_says(strict: Harness) -> None:
    served(await strict.chat(messages=[USER, ASSISTANT | {"tool_calls": [CALL]}]))
    expected = strict.router.last.task.prompt_token_ids
    parsed = {"name": "f", "arguments": "{}", "parsed_arguments": {"deep": [1]}}
    call = "messages[].tool_calls[]"
    for more, dropped in (
        ({"function": parsed}, [f"{call}.function.parsed_arguments"]),
        ({"index": 0, "provider_specific_fields": {"x": 1}}, [f"{call}.provider_specific_fields"]),
        ({"function": {"name": "f", "arguments": {}}}, []),
    ):
        said = ASSISTANT | {"tool_calls": [CALL | more]}
        taken(await strict.chat(messages=[USER, said]), *dropped)
        assert strict.router.last.task.prompt_token_ids == expected


@pytest.mark.promise("S6-302")
async def test_the_openai_clients_own_message_continues_a_conversation(strict: Harness) -> None:
    answer = await strict.openai.chat.completions.create(**CHAT)
    said = answer.choices[0].message
    for message in (said, said.model_dump(), dict(said)):
        again = await strict.openai.chat.completions.create(
            **CHAT | {"messages": [USER, message, USER]}
        )
        assert again.choices[0].message.content == "Hello!"


@pytest.mark.promise("S6-302")
async def test_an_assistant_that_said_nothing_is_an_empty_text(strict: Harness) -> None:
    served(await strict.chat(messages=[USER, {"role": "assistant", "content": ""}, USER]))
    expected = strict.router.last.task.prompt_token_ids
    nothing = ChatCompletionMessage(role="assistant", content=None).model_dump()
    served(await strict.chat(messages=[USER, nothing, USER]))
    assert strict.router.last.task.prompt_token_ids == expected
    silent = await strict.chat(messages=[USER, {"role": "user", "content": None}])
    assert error_of(silent) == (400, "invalid_request", "messages[1].content")


SAYS_MORE: list[tuple[dict[str, Any], str]] = [
    (ASSISTANT | {"refusal": "No."}, "messages[1].refusal"),
    (ASSISTANT | {"audio": {"id": "a"}}, "messages[1].audio"),
    (ASSISTANT | {"annotations": ["x" * 100]}, "messages[1].annotations"),
    (
        {"role": "user", "content": [{"type": "text", "text": "a", "image_url": {"url": "b"}}]},
        "messages[1].content[0].image_url",
    ),
    ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type"),
]


@pytest.mark.promise("S6-302")
@pytest.mark.parametrize(("message", "param"), SAYS_MORE, ids=lambda v: str(v)[:60])
async def test_what_a_message_says_beyond_text_is_refused_by_name(
    shared: Harness, message: dict[str, Any], param: str
) -> None:
    response = await shared.chat(messages=[USER, message])
    assert error_of(response) == (400, "unsupported_parameter", param)


async def test_a_part_may_say_how_it_is_cached_elsewhere(strict: Harness) -> None:
    part = {"type": "text", "text": "Hello", "cache_control": {"type": "ephemeral"}}
    response = await strict.chat(messages=[{"role": "user", "content": [part]}])
    taken(response, "messages[].content[].cache_control")


# --- values that change nothing ---

NULLS = sorted({*foreign.OF_CHATS, "n", "stop", "seed", "best_of", "metadata", "tandem", "stream"})
HARMLESS = [
    (name, json.loads(value)) for name, each in foreign.OF_CHATS.items() for value in each.harmless
]


@pytest.mark.promise("S6-301")
async def test_null_means_the_default_in_every_known_field(strict: Harness) -> None:
    served(await strict.chat(**dict.fromkeys(NULLS)))
    for name in NULLS:
        served(await strict.chat(**{name: None}))
    served(await strict.complete(**dict.fromkeys(foreign.OF_COMPLETIONS)))
    options = dict.fromkeys(("include_usage", "continuous_usage_stats", "include_obfuscation"))
    served(await strict.chat(stream=True, stream_options=options))


@pytest.mark.promise("S6-301")
@one_case(("name", "value"), HARMLESS, ids=lambda v: str(v)[:40])
async def test_a_value_that_asks_for_what_is_done_anyway_is_accepted(
    strict: Harness, name: str, value: Any
) -> None:
    served(await strict.chat(**{name: value}))


@pytest.mark.promise("S6-301")
@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1},
        {"n": 2, "best_of": 2},
        {"stop": ""},
        {"top_logprobs": 0},
        {"stream_options": {"include_usage": True}},
        {"stream_options": {"include_obfuscation": False}},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    ],
    ids=str,
)
async def test_a_known_field_may_say_nothing(strict: Harness, fields: dict[str, Any]) -> None:
    served(await strict.chat(**fields))
    assert not strict.router.last.task.sampling.stop


@pytest.mark.promise("S6-301")
async def test_a_seed_of_minus_one_is_none(strict: Harness) -> None:
    served(await strict.chat(seed=-1))
    assert not strict.router.last.task.sampling.HasField("seed")
    served(await strict.chat(seed=0))
    assert strict.router.last.task.sampling.HasField("seed")


async def test_metadata_that_is_no_text_is_given_as_its_json(strict: Harness) -> None:
    given = {"a": "text", "b": 5, "c": True, "d": None, "e": {"x": [1.5, "ü"]}}
    served(await strict.chat(metadata=given))
    assert dict(strict.router.last.task.metadata) == {
        "a": "text",
        "b": "5",
        "c": "true",
        "d": "null",
        "e": '{"x":[1.5,"ü"]}',
    }
    long = await strict.chat(metadata={"a": ["x" * 509]})
    assert error_of(long) == (400, "invalid_request", "metadata.a")
    served(await strict.chat(metadata={"a": ["x" * 508]}))


CHANGES_THE_ANSWER: list[tuple[dict[str, Any], str]] = [
    ({"web_search_options": {}}, "web_search_options"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"use_beam_search": 0}, "use_beam_search"),
    ({"length_penalty": 1.1}, "length_penalty"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"best_of": 2}, "best_of"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"system": "Be brief."}, "system"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
]
"""Of what has other values; tests of docs/api.md try each field that is refused."""


@pytest.mark.promise("S6-301")
@pytest.mark.parametrize(("fields", "param"), CHANGES_THE_ANSWER, ids=lambda v: str(v)[:60])
async def test_a_value_that_would_change_the_answer_is_refused_by_name(
    shared: Harness, fields: dict[str, Any], param: str
) -> None:
    status, code, named = error_of(await shared.chat(**fields))
    assert (status, code) == (400, "unsupported_parameter")
    assert named is not None
    assert named.partition(".")[0] == param


# --- fields that nobody knows ---


@pytest.mark.promise("S6-300")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"invented": 1}, "invented"),
        ({"messages": [USER | {"mood": 1}]}, "messages[0].mood"),
        ({"tools": [TOOL | {"colour": 1}]}, "tools[0].colour"),
        (
            {"messages": [USER, ASSISTANT | {"tool_calls": [CALL | {"hue": 1}]}]},
            "messages[1].tool_calls[0].hue",
        ),
        ({"tools": [{**TOOL, "function": {"name": "f", "age": 1}}]}, "tools[0].function.age"),
    ],
)
async def test_an_unknown_field_is_refused_where_the_operator_says_so(
    strict: Harness, fields: dict[str, Any], param: str
) -> None:
    assert error_of(await strict.chat(**fields)) == (400, "invalid_request", param)


@pytest.mark.promise("S6-300")
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tandem": {"shout": True}}, "tandem.shout"),
        ({"stream_options": {"shout": True}, "invented": 1}, "stream_options.shout"),
        ({"response_format": {"type": "text", "colour": 1}}, "response_format.colour"),
    ],
)
async def test_objects_of_tandems_own_know_no_other_fields(
    shared: Harness, fields: dict[str, Any], param: str
) -> None:
    assert error_of(await shared.chat(**fields)) == (400, "invalid_request", param)


@pytest.mark.promise("S6-300")
async def test_what_is_told_of_unknown_fields_is_short_and_safe(shared: Harness) -> None:
    name = 'x\r\nset-cookie: "a=b", ü' + "y" * 1000
    told = (await shared.chat(**{name: 1})).headers
    assert told[HEADER] == "x??set-cookie???a?b????" + "y" * (64 - 23)
    assert "set-cookie" not in told
    most = {f"invented-{letter}": 1 for letter in "abcdefghijklmnop"}
    assert (await shared.chat(**most)).headers[HEADER] == ", ".join(most)
    refused = await shared.chat(**most, another=1)
    assert error_of(refused) == (400, "invalid_request", "another")
    tools = [{**TOOL, "function": {"name": f"f{n}", "age": 1}, "colour": 1} for n in range(9)]
    told = (await shared.chat(tools=tools)).headers
    assert told[HEADER] == "tools[].colour, tools[].function.age"
    many = [USER | {"mood": 1}] * 100
    assert (await shared.chat(messages=many)).headers[HEADER] == "messages[].mood"


@pytest.mark.promise("S6-300")
@pytest.mark.parametrize(
    "text",
    [
        b'{"invented": "\xff"}',
        b'{"\xff": 1}',
        b'{"invented": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"invented": [1, 2}',
        b'{"invented": 1, "n": 0, "n": 1}',
    ],
    ids=["value no text", "name no text", "deep", "malformed", "twice"],
)
async def test_what_is_ignored_is_held_to_the_same_bounds(shared: Harness, text: bytes) -> None:
    body = json.dumps(CHAT).encode()[:-1] + b"," + text[1:]
    response = await shared.http.post("/v1/chat/completions", content=body)
    assert error_of(response)[:2] == (400, "invalid_request")


@pytest.mark.promise("S6-301")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("temprature", "temperature"),
        ("maxTokens", "max_tokens"),
        ("stopTokenIds", "stop_token_ids"),
        ("topp", "top_p"),
        ("sede", "seed"),
        ("tool_choices", "tool_choice"),
    ],
)
async def test_a_slip_of_the_pen_is_refused_and_told_what_was_meant(
    shared: Harness, written: str, meant: str
) -> None:
    response = await shared.chat(**{written: None})
    assert error_of(response) == (400, "invalid_request", written)
    assert f"did you mean `{meant}`?" in response.json()["error"]["message"]


# --- what libraries know failures by ---


@pytest.mark.promise("S6-303")
@pytest.mark.parametrize("fields", [{"max_tokens": 4096}, {"prompt": "x" * 1_000_000}])
async def test_a_context_that_is_too_short_is_said_in_openais_words(
    shared: Harness, fields: dict[str, Any]
) -> None:
    response = await shared.complete(**fields)
    assert error_of(response)[:2] == (400, "context_length_exceeded")
    message = response.json()["error"]["message"]
    assert message.startswith("This model's maximum context length is 4096 tokens")


async def test_a_head_is_answered_as_a_get_without_its_body(shared: Harness) -> None:
    for path in ("/health", "/live", "/v1/models"):
        whole, head = await shared.http.get(path), await shared.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.content))
    assert (await shared.http.head("/v1/completions")).headers["allow"] == "POST"
