"""What clients of `/v1/responses` get: OpenAI's shapes, of the same answers that chats have."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness import BOTH_WAYS, MODEL, Harness, error_of, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from spoken import BERN, CALL, TEXT, THOUGHT, Script, rows_of
from upstream_parts import submission

from tandem.errors import EngineError
from tandem_answers.responses.answers import repeated
from tandem_answers.responses.requests import ResponseRequest
from tandem_answers.responses.writers import ResponseEvents
from tandem_frontend.openai.reading.bodies import SMALL_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": None,
}
ASKED = {"model": MODEL, "input": "How warm is it in Bern?"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


SCRIPT = Script()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(model_path: Path) -> AsyncIterator[Harness]:
    """A model that thinks and calls tools."""
    async with serving(model_path, SCRIPT, {"model_family": "qwen3"}) as harness:
        yield harness


@pytest.fixture(autouse=True)
def _says_well() -> None:
    """What the model says where a test wants nothing of it."""
    SCRIPT.says("Well.")


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which must be numbered, named, and of the types of OpenAI's own."""
    found = []
    for number, event in enumerate(text.removesuffix("\n\n").split("\n\n")):
        name, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == "event: " + value["type"]
        assert value["sequence_number"] == number
        assert type(EVENT.validate_python(value, strict=True)).__name__.startswith("Response")
        found.append(value)
    return found


async def ask(frontend: Harness, *, stream: bool, **fields: Any) -> dict[str, Any]:
    """The answer, which must be of the type of OpenAI's own; of a stream, its last one, where all
    that came before must come to the same.
    """
    response = await frontend.http.post("/v1/responses", json=ASKED | fields | {"stream": stream})
    assert response.status_code == 200, response.text
    if not stream:
        answer = response.json()
    else:
        found = events(response.text)
        answer = found[-1]["response"]
        assert found[-1]["type"] == f"response.{answer['status']}"
        assert put_together(found) == answer["output"]
        assert [each["type"] for each in found[:2]] == ["response.created", "response.in_progress"]
        assert found[0]["response"]["output"] == []
    Response.model_validate(answer, strict=True)
    return answer


def put_together(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output of a stream's deltas, which must come to what its `done` events say."""
    items: list[dict[str, Any]] = []
    texts: dict[str, str] = {}
    for event in found:
        match event["type"].removeprefix("response."):
            case "output_item.added":
                assert event["output_index"] == len(items)
                assert event["item"]["status"] == "in_progress"
                items.append(event["item"])
            case "content_part.added":
                assert event["part"]["text"] == ""
                items[-1]["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                assert event["item_id"] == items[-1]["id"]
                texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert event["text"] == texts[event["item_id"]]
            case "function_call_arguments.done":
                assert event["arguments"] == texts.get(event["item_id"], "")
            case "content_part.done":
                items[-1]["content"] = [event["part"]]
            case "output_item.done":
                done, item = event["item"], items[-1]
                said = done["arguments"] if "arguments" in done else done["content"][0]["text"]
                assert said == texts.get(item["id"], "")
                items[-1] = item | {
                    key: done[key] for key in ("status", "arguments") if key in done
                }
                assert items[-1] == done
    return items


# --- answers ---


@BOTH_WAYS
@pytest.mark.promise("S6-340")
async def test_a_text_is_answered_by_a_message(
    served: Harness, model_path: Path, stream: bool
) -> None:
    SCRIPT.says("It is ", "warm.", cached_tokens=2)
    answer = await ask(served, stream=stream, instructions="Be brief.", max_output_tokens=7)
    (message,) = answer["output"]
    assert message["content"][0]["text"] == "It is warm."
    assert (answer["status"], message["status"]) == ("completed", "completed")
    assert (answer["store"], answer["instructions"]) == (False, "Be brief.")
    assert answer["usage"]["output_tokens"] == 2
    assert answer["usage"]["input_tokens_details"] == {"cached_tokens": 2}
    assert answer["id"].startswith("resp_")
    shown = SCRIPT.prompt(model_path)
    assert shown.index("system\nBe brief.") < shown.index("user\nHow warm is it in Bern?")
    assert SCRIPT.tasks[-1].sampling.max_tokens == 7


@BOTH_WAYS
@pytest.mark.promise("S6-340")
async def test_what_an_answer_gave_goes_back_as_it_came(
    served: Harness, model_path: Path, stream: bool
) -> None:
    SCRIPT.says(*THOUGHT, "Let me see.", *CALL)
    first = await ask(served, stream=stream, tools=[WEATHER])
    reasoning, message, call = first["output"]
    assert reasoning["content"][0]["text"].strip() == "Bern is a city."
    assert (call["name"], call["arguments"]) == ("weather", BERN)
    assert first["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"}
    asked = {"type": "message", "role": "user", "content": ASKED["input"]}
    SCRIPT.says("20 degrees.")
    told = [asked, reasoning, message, call, result]
    second = await ask(served, stream=stream, tools=[WEATHER], input=told)
    assert second["output"][0]["content"][0]["text"] == "20 degrees."
    shown = SCRIPT.prompt(model_path)
    assert shown.index("Let me see.") < shown.index(CALL)
    assert shown.count("<|im_start|>assistant") == 2
    assert "<tool_response>\n20 degrees\n</tool_response>" in shown
    assert json.dumps("The weather of a place.") in shown


async def test_the_openai_client_joins_a_stream(served: Harness) -> None:
    SCRIPT.says(THOUGHT, "Let me see.", *CALL)
    async with served.openai.responses.stream(**ASKED, tools=[WEATHER]) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "Let me see."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    answer = await served.openai.responses.create(**ASKED, tools=[WEATHER])
    assert answer.output_text == "Let me see."


@BOTH_WAYS
@pytest.mark.promise("S6-341")
@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ({}, "completed", None),
        ({"stop_reason": "END"}, "completed", None),
        ({"length": True}, "incomplete", "max_output_tokens"),
    ],
)
async def test_an_answer_says_how_it_ended(
    served: Harness, stream: bool, end: dict[str, Any], status: str, reason: str | None
) -> None:
    SCRIPT.says("It is", **end)
    answer = await ask(served, stream=stream)
    assert answer["status"] == answer["output"][-1]["status"] == status
    assert answer["incomplete_details"] == (reason and {"reason": reason})


@pytest.mark.promise("S0-039", "S6-341")
@pytest.mark.parametrize("setting", ["stop", "content_filter"])
async def test_a_withheld_answer_is_incomplete_and_says_why(model_path: Path, setting: str) -> None:
    """Whether prefill's hook or decode's ended it, after a text, a call or nothing, whatever an
    answer to a chat would be called.
    """
    chosen = {"model_family": "qwen3", "withheld_finish_reason": setting}
    told = {"reason": "content_filter", "stop_reason": "test_policy"}
    async with serving(model_path, SCRIPT, chosen) as frontend:
        for stream, by, said in itertools.product(
            (False, True), ("withheld", "blocked"), ("It is", CALL, "")
        ):
            SCRIPT.says(*said, **{by: "test_policy"})
            answer = await ask(frontend, stream=stream, tools=[WEATHER])
            assert (answer["status"], answer["usage"] is None) == ("incomplete", False)
            assert answer["incomplete_details"] == told
            assert [item["status"] for item in answer["output"]] == ["incomplete"] * bool(said)
        read = await frontend.openai.responses.create(**ASKED)
        assert read.incomplete_details is not None
        assert read.incomplete_details.to_dict()["stop_reason"] == "test_policy"


@BOTH_WAYS
async def test_a_call_that_was_cut_off_is_incomplete(served: Harness, stream: bool) -> None:
    SCRIPT.says(CALL[:-25], length=True)
    answer = await ask(served, stream=stream, tools=[WEATHER])
    (call,) = answer["output"]
    assert call["status"] == "incomplete"
    assert BERN.startswith(call["arguments"])


@pytest.mark.promise("S6-342")
async def test_a_form_is_asked_for_as_text_format(model_path: Path) -> None:
    SCRIPT.says('{"a": 1}')
    format = {"type": "json_schema", "name": "it", "schema": SCHEMA}
    async with serving(model_path, SCRIPT, {}) as frontend:
        await frontend.set_fleet(logits_processors=("json_schema",))
        for stream in (False, True):
            answer = await ask(frontend, stream=stream, text={"format": format})
            assert answer["text"]["format"]["schema"] == SCHEMA
            (processor,) = SCRIPT.tasks[-1].logits.processors
            assert processor.name == "json_schema"
            assert json.loads(processor.args_json) == {"schema": SCHEMA}


# --- failures ---


@pytest.mark.promise("S6-341")
async def test_a_stream_that_fails_says_so_and_how_far_it_came(served: Harness) -> None:
    SCRIPT.says("It is", error=EngineError("broken").to_proto())
    response = await served.http.post("/v1/responses", json=ASKED | {"stream": True})
    *_, told, last = events(response.text)
    assert (told["type"], told["code"]) == ("error", "engine_error")
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert last["response"]["output"][0]["status"] == "incomplete"
    SCRIPT.says("It is", error=EngineError("broken").to_proto())
    failed = await served.http.post("/v1/responses", json=ASKED)
    assert error_of(failed)[:2] == (502, "engine_error")


REFUSED = [
    ({"store": True}, "store"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"background": True}, "background"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"seed": 2}, "seed"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
    ),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
]


@pytest.mark.promise("S6-343")
@one_case(("fields", "param"), REFUSED)
async def test_what_is_not_offered_is_refused_by_name(
    served: Harness, fields: dict[str, Any], param: str
) -> None:
    refused = await served.http.post("/v1/responses", json=ASKED | fields)
    assert error_of(refused) == (400, "unsupported_parameter", param)
    assert ": " in refused.json()["error"]["message"]


WRONG = [
    ({"input": []}, "input"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "function_call", "name": "f", "call_id": "c"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"input": "x" * 100_000}, "input"),
    ({"max_output_tokens": 5000}, "input"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"reasoning": {"effort": "hard"}}, "reasoning.effort"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
    ({"temprature": 1}, "temprature"),
    ({"input": [{"role": "user", "contents": "x"}]}, "input[0].contents"),
]


@pytest.mark.promise("S6-343")
@one_case(("fields", "param"), WRONG)
async def test_errors_name_fields_as_the_client_did(
    served: Harness, fields: dict[str, Any], param: str
) -> None:
    refused = await served.http.post("/v1/responses", json=ASKED | fields)
    assert error_of(refused)[::2] == (400, param)


@pytest.mark.promise("S6-343")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
async def test_what_clients_always_send_is_passed_over(served: Harness, size: int) -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "x", "new": 1}], "phase": 1}
    answer = await served.http.post(
        "/v1/responses",
        json=ASKED
        | {
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "k",
            "truncation": "disabled",
            "service_tier": "auto",
            "previous_response_id": None,
            "input": [item],
            "invented": "x" * size,
            "instructions": "Be brief.",
        },
    )
    assert answer.status_code == 200, answer.text
    dropped = "invented, input[].phase, input[].content[].new"
    assert answer.headers["x-tandem-ignored-fields"] == dropped
    assert answer.json()["instructions"] == "Be brief."


@pytest.mark.promise("S6-343")
async def test_items_come_back_with_fields_that_newer_clients_give_them(served: Harness) -> None:
    """LiteLLM's proxy fills in null where OpenAI's own client leaves fields out."""
    newer = {"caller": None, "namespace": None, "async": False, "async_": None}
    call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": BERN}
    text = {"type": "input_text", "text": "20", "prompt_cache_breakpoint": {"mode": "explicit"}}
    output = {"type": "function_call_output", "call_id": "c", "output": [text]}
    tool = {"allowed_callers": ["direct"], "defer_loading": False, "output_schema": None}
    fields = {"input": [call | newer, output | newer], "tools": [WEATHER | tool | {"async": None}]}
    answer = await served.http.post("/v1/responses", json=ASKED | fields)
    assert answer.status_code == 200, answer.text
    assert {*answer.headers["x-tandem-ignored-fields"].split(", ")} == {
        "input[].output[].prompt_cache_breakpoint",
        "tools[].allowed_callers",
        "tools[].defer_loading",
    }


@pytest.mark.promise("S6-343")
async def test_no_response_is_found_again(served: Harness) -> None:
    for method in ("GET", "DELETE"):
        answer = await served.http.request(method, "/v1/responses/resp_1")
        assert error_of(answer)[:2] == (404, "not_found")
        assert "not stored" in answer.json()["error"]["message"]


# --- whatever comes ---


@given(cuts=st.sets(st.integers(1, len(TEXT) - 1), max_size=12), length=st.booleans())
@settings(max_examples=25)
async def test_a_stream_and_a_body_hold_the_same_however_it_comes(
    served: Harness, cuts: set[int], length: bool
) -> None:
    SCRIPT.says(*rows_of(TEXT, cuts), length=length)
    body, streamed = [await ask(served, stream=each, tools=[WEATHER]) for each in (False, True)]
    for answer in (body, streamed):
        for item in answer["output"]:
            for name in ("id", "call_id"):
                item.pop(name, None)
    assert body["output"] == streamed["output"]
    assert body["status"] == streamed["status"]


@pytest.mark.promise("S6-343")
async def test_what_a_stream_says_again_at_its_end_is_counted_while_it_is_kept() -> None:
    held: list[int] = []
    asked = submission(streaming=True, repeated=repeated(ResponseRequest(model="m", input="x")))
    writer = ResponseEvents(asked, held.append)
    for _ in range(100):
        writer.row((0, "x" * 100, (), (), 1))
    assert 10_000 - 4096 < sum(held) <= 10_000
    assert len(held) < 4
