"""What clients of `/v1/messages` get: Anthropic's shapes, of the same answers that chats have."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from harness import BOTH_WAYS, MODEL, Harness, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case
from spoken import CALL, TEXT, THOUGHT, Script, rows_of

from tandem.errors import EngineError, InvalidRequestError, QueueFullError
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
WEATHER = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}
USER = {"role": "user", "content": "How warm is it in Bern?"}
ASKED = {"model": MODEL, "max_tokens": 50, "messages": [USER]}
SCRIPT = Script()
ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    529: "overloaded_error",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(model_path: Path) -> AsyncIterator[Harness]:
    """A model that thinks and calls tools."""
    async with serving(model_path, SCRIPT, {"model_family": "qwen3"}) as harness:
        await harness.set_fleet(logits_processors=("json_schema", "thinking_budget", "tagged"))
        yield harness


@pytest.fixture(autouse=True)
def _says_well() -> None:
    """What the model says where a test wants nothing of it."""
    SCRIPT.says("Well.")


def events(text: str) -> list[dict[str, Any]]:
    found = []
    for event in text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == "event: " + value["type"]
        found.append(value)
    return found


async def ask(frontend: Harness, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """The message; of a stream, as Anthropic's client puts it together."""
    body = ASKED | fields | {"stream": stream}
    response = await frontend.http.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["request-id"] == response.headers["x-tandem-trace-id"]
    message = put_together(events(response.text)) if stream else response.json()
    assert set(message) == {
        *("id", "type", "role", "model", "content", "usage"),
        *("stop_reason", "stop_sequence", "stop_details"),
    }
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
    return message


def put_together(found: list[dict[str, Any]]) -> dict[str, Any]:
    first, *middle, delta, stop = found
    assert (first["type"], stop) == ("message_start", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    for event in middle:
        assert event["index"] == len(message["content"]) - (event["type"] != "content_block_start")
        match event["type"]:
            case "content_block_start":
                message["content"].append(event["content_block"] | {"text so far": ""})
            case "content_block_delta":
                change = event["delta"]
                name = {"text_delta": "text", "thinking_delta": "thinking"}.get(change["type"])
                message["content"][-1]["text so far"] += change[name or "partial_json"]
            case "content_block_stop":
                block = message["content"][-1]
                text = block.pop("text so far")
                if block["type"] != "tool_use":
                    assert block[block["type"]] == ""
                    block[block["type"]] = text
                else:
                    assert block["input"] == {}
                    block["input"] = parsed(text)
    assert all("text so far" not in block for block in message["content"])
    assert delta["type"] == "message_delta"
    return message | delta["delta"] | {"usage": message["usage"] | delta["usage"]}


def parsed(arguments: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(arguments or "{}")
    except ValueError:
        return {"INVALID_JSON": arguments}
    return found


def error_of(response: httpx.Response) -> str:
    """The message of an answer that must be an error of Anthropic's shape."""
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    assert body["error"]["type"] == ERRORS[response.status_code]
    message: str = body["error"]["message"]
    return message


# --- answers ---


@BOTH_WAYS
@pytest.mark.promise("S6-350")
async def test_a_turn_is_answered_by_a_message(
    served: Harness, model_path: Path, stream: bool
) -> None:
    SCRIPT.says("It is ", "warm.", cached_tokens=2)
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    message = await ask(served, stream=stream, system=system, top_k=3, metadata={"user_id": "u"})
    (block,) = message["content"]
    assert (block["type"], block["text"]) == ("text", "It is warm.")
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    usage = message["usage"]
    assert usage["output_tokens"] == 2
    assert usage["cache_read_input_tokens"] == 2
    task = SCRIPT.tasks[-1]
    assert usage["input_tokens"] == len(task.prompt_token_ids) - 2
    assert (task.sampling.max_tokens, task.sampling.top_k) == (50, 3)
    assert dict(task.metadata) == {"user_id": "u"}
    assert "system\nBe brief." in SCRIPT.prompt(model_path)


@BOTH_WAYS
@pytest.mark.promise("S6-350")
async def test_what_an_answer_gave_goes_back_as_it_came(
    served: Harness, model_path: Path, stream: bool
) -> None:
    SCRIPT.says(*THOUGHT, "Let me see.", *CALL)
    first = await ask(served, stream=stream, tools=[WEATHER])
    thinking, text, call = first["content"]
    assert thinking["thinking"].strip() == "Bern is a city."
    assert thinking["signature"] == ""
    assert text["text"] == "Let me see."
    assert (call["name"], call["input"]) == ("weather", {"place": "Bern"})
    assert first["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "20 degrees"}
    told = [
        USER,
        {
            "role": "assistant",
            "content": [{"type": "redacted_thinking", "data": "x"}, *first["content"]],
        },
        {"role": "user", "content": [result, {"type": "text", "text": "Well?"}]},
    ]
    SCRIPT.says("20 degrees.")
    second = await ask(served, stream=stream, tools=[WEATHER], messages=told)
    assert second["content"][0]["text"] == "20 degrees."
    shown = SCRIPT.prompt(model_path)
    assert shown.index("Let me see.") < shown.index(CALL) < shown.index("user\nWell?")
    assert "<tool_response>\n20 degrees\n</tool_response>" in shown
    failed = result | {"is_error": True, "content": [{"type": "text", "text": "no data"}]}
    told[-1] = {"role": "user", "content": [failed]}
    await ask(served, stream=stream, tools=[WEATHER], messages=told)
    assert "<tool_response>\nError: no data\n" in SCRIPT.prompt(model_path)


@BOTH_WAYS
@pytest.mark.promise("S6-351")
@pytest.mark.parametrize(
    ("end", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"length": True}, "max_tokens", None),
        ({"stop_reason": "END"}, "stop_sequence", "END"),
    ],
)
async def test_an_answer_says_how_it_ended(
    served: Harness, stream: bool, end: dict[str, Any], reason: str, sequence: str | None
) -> None:
    SCRIPT.says("It is", **end)
    message = await ask(served, stream=stream, stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert message["stop_details"] is None
    assert list(SCRIPT.tasks[-1].sampling.stop) == ["END"]


@pytest.mark.promise("S0-039", "S6-351")
@pytest.mark.parametrize("setting", ["stop", "content_filter"])
async def test_a_withheld_answer_is_a_refusal_that_says_why(model_path: Path, setting: str) -> None:
    """Whether prefill's hook or decode's ended it, after a text, a call or nothing, whatever an
    answer to a chat would be called.
    """
    chosen = {"model_family": "qwen3", "withheld_finish_reason": setting}
    told = {"type": "refusal", "category": None, "explanation": "test_policy"}
    async with serving(model_path, SCRIPT, chosen) as frontend:
        for stream, by, said in itertools.product(
            (False, True), ("withheld", "blocked"), ("It is", CALL, "")
        ):
            SCRIPT.says(*said, **{by: "test_policy"})
            message = await ask(frontend, stream=stream, tools=[WEATHER])
            assert (message["stop_reason"], message["stop_sequence"]) == ("refusal", None)
            assert message["stop_details"] == told


@BOTH_WAYS
@pytest.mark.promise("S6-351")
async def test_arguments_that_are_no_object_are_given_as_they_are(
    served: Harness, model_path: Path, stream: bool
) -> None:
    SCRIPT.says(CALL[:-20], length=True)
    message = await ask(served, stream=stream, tools=[WEATHER])
    (call,) = message["content"]
    assert message["stop_reason"] == "max_tokens"
    assert list(call["input"]) == ["INVALID_JSON"]
    assert call["input"]["INVALID_JSON"].startswith('{"place"')
    told = [USER, {"role": "assistant", "content": [call]}, USER]
    SCRIPT.says("Well.")
    await ask(served, stream=stream, tools=[WEATHER], messages=told)
    shown = SCRIPT.prompt(model_path)
    assert json.dumps(call["input"]["INVALID_JSON"]) in shown
    assert "INVALID_JSON" not in shown
    SCRIPT.says('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>')
    (call,) = (await ask(served, stream=stream, tools=[WEATHER]))["content"]
    assert call["input"] == {}


@pytest.mark.promise("S6-352")
async def test_a_form_a_budget_and_a_choice_are_those_of_chats(
    served: Harness, model_path: Path
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    format = {"type": "json_schema", "schema": schema}
    await ask(served, stream=False, output_config={"format": format})
    (form,) = SCRIPT.tasks[-1].logits.processors
    assert json.loads(form.args_json) == {"schema": schema}
    await ask(served, stream=False, thinking={"type": "enabled", "budget_tokens": 20})
    (budget,) = SCRIPT.tasks[-1].logits.processors
    assert (budget.name, json.loads(budget.args_json)["budget"]) == ("thinking_budget", 20)
    await ask(
        served, stream=False, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"}
    )
    assert SCRIPT.tasks[-1].logits.processors[0].name == "tagged"
    SCRIPT.says(THOUGHT, CALL + "\n" + CALL)
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    fields = {"tools": [WEATHER], "tool_choice": choice}
    omitted = {"type": "adaptive", "display": "omitted"}
    message = await ask(served, stream=False, **fields, thinking=omitted)
    assert [block["type"] for block in message["content"]] == ["tool_use"]
    SCRIPT.says(" warm.")
    await ask(served, stream=False, messages=[USER, {"role": "assistant", "content": "It is"}])
    assert SCRIPT.prompt(model_path).endswith("assistant\nIt is")


@pytest.mark.promise("S6-352")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_tokens_are_counted_as_a_message_has_them(served: Harness, size: int) -> None:
    body = {"model": MODEL, "messages": [USER], "system": "Be brief.", "tools": [WEATHER]}
    padded = body | {"cache_control": "x" * size}
    counted = await served.http.post("/v1/messages/count_tokens", json=padded)
    assert counted.status_code == 200
    message = await ask(served, stream=False, **body)
    assert counted.json() == {"input_tokens": message["usage"]["input_tokens"]}
    refused = await served.http.post("/v1/messages/count_tokens", json=body | {"model": "other"})
    assert "other" in error_of(refused)


# --- failures ---


@pytest.mark.promise("S6-353")
async def test_a_stream_that_fails_ends_with_an_error(served: Harness) -> None:
    SCRIPT.says("It is", error=EngineError("broken").to_proto())
    response = await served.http.post("/v1/messages", json=ASKED | {"stream": True})
    last = events(response.text)[-1]
    assert last["error"] == {"type": "api_error", "message": "broken"}
    assert last["request_id"] == response.headers["request-id"]
    SCRIPT.says(error=QueueFullError("full").to_proto())
    for stream in (False, True):
        refused = await served.http.post("/v1/messages", json=ASKED | {"stream": stream})
        assert (refused.status_code, error_of(refused)) == (529, "full")


@pytest.mark.promise("S6-353")
async def test_errors_before_a_body_is_read_have_the_shape_too(model_path: Path) -> None:
    key = {"x-api-key": "secret-key-1", "anthropic-version": "whatever"}
    large = ASKED | {"system": "x" * 1000}
    chosen = {"api_keys": ("secret-key-1",), "max_body_bytes": 1000}
    async with (
        serving(model_path, SCRIPT, chosen) as frontend,
        httpx.AsyncClient(base_url=frontend.http.base_url) as http,
    ):
        for method, path, body, headers, status in (
            ("POST", "/v1/messages", ASKED, {}, 401),
            ("POST", "/v1/messages", ASKED, {"x-api-key": "other"}, 401),
            ("GET", "/v1/messages", None, key, 405),
            ("POST", "/v1/messages/batches", ASKED, key, 404),
            ("POST", "/v1/messages", large, key, 413),
        ):
            response = await http.request(method, path, json=body, headers=headers)
            assert (response.status_code, bool(error_of(response))) == (status, True)
        answer = await http.post("/v1/messages", json=ASKED, headers=key)
        assert answer.status_code == 200
        elsewhere = await http.post("/v1/messagesx", json=ASKED, headers=key)
        assert elsewhere.json()["error"]["code"] == "not_found"


def block(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [fields]}]}


REFUSED = [
    (block(type="image", source={}), "messages[0].content[0].type"),
    (block(type="document", source={}), "messages[0].content[0].type"),
    ({"seed": 3}, "seed"),
    ({"stop": ["x"]}, "stop"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 5000}, "messages"),
    ({"messages": []}, "messages"),
    (block(type="text"), "messages[0].content[0].text"),
    (block(type="tool_result"), "messages[0].content[0].tool_use_id"),
    (block(type="tool_use", id="a", name="f", input={}), "messages[0].content[0]"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"temprature": 1}, "temprature"),
]


@pytest.mark.promise("S6-353")
@one_case(("fields", "param"), REFUSED)
async def test_what_is_not_offered_is_refused_by_name(
    served: Harness, fields: dict[str, Any], param: str
) -> None:
    refused = await served.http.post("/v1/messages", json=ASKED | fields)
    assert refused.status_code == 400
    assert f"`{param}`" in error_of(refused)


@pytest.mark.promise("S6-353")
async def test_what_clients_always_send_is_passed_over(served: Harness) -> None:
    text = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "new": 1}
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    dumped = call | {"caller": None, "toolset_name": None}
    body = {
        "messages": [
            {"role": "user", "content": [text]},
            {"role": "assistant", "content": [dumped]},
        ],
        "tools": [WEATHER | {"type": "custom", "cache_control": {"type": "ephemeral"}}],
        "service_tier": "auto",
        "mcp_servers": [],
        "invented": 1,
    }
    answer = await served.http.post("/v1/messages", json=ASKED | body)
    assert answer.status_code == 200, answer.text
    dropped = answer.headers["x-tandem-ignored-fields"].split(", ")
    assert dropped == [
        "invented",
        "messages[].content[].cache_control",
        "messages[].content[].new",
        "tools[].cache_control",
    ]


@pytest.mark.promise("S6-353")
async def test_what_workers_refuse_is_told_by_the_clients_own_field(served: Harness) -> None:
    wrong = InvalidRequestError("`logits_processors[0]` is wrong", param="logits_processors[0]")
    SCRIPT.says(error=wrong.to_proto())
    format = {"type": "json_schema", "schema": {"type": "object"}}
    refused = await served.http.post(
        "/v1/messages", json=ASKED | {"output_config": {"format": format}}
    )
    assert (refused.status_code, "`output_config.format`" in error_of(refused)) == (400, True)


async def test_a_page_of_another_origin_may_read_what_its_request_is_called(
    model_path: Path,
) -> None:
    origin = "https://app.example"
    async with serving(model_path, SCRIPT, {"cors_origins": (origin,)}) as frontend:
        answer = await frontend.http.post("/v1/messages", json=ASKED, headers={"origin": origin})
        assert "request-id" in answer.headers["access-control-expose-headers"].split(", ")


# --- whatever comes ---


@given(cuts=st.sets(st.integers(1, len(TEXT) - 1), max_size=12), length=st.booleans())
@settings(max_examples=25)
async def test_a_stream_and_a_body_hold_the_same_however_it_comes(
    served: Harness, cuts: set[int], length: bool
) -> None:
    SCRIPT.says(*rows_of(TEXT, cuts), length=length)
    body, streamed = [await ask(served, stream=each, tools=[WEATHER]) for each in (False, True)]
    for message in (body, streamed):
        del message["id"]
        for each in message["content"]:
            each.pop("id", None)
    assert body == streamed
