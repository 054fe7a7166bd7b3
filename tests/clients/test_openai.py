"""OpenAI's own client, chats and responses."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from conftest import GREETING, Server

USER: dict[str, Any] = {"role": "user", "content": "Hello"}
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS, "strict": True}}
]
FLAT: list[Any] = [
    {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
]


class Place(BaseModel):
    name: str
    people: int


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key=server.key, max_retries=0)


def test_chat(client: OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(model=server.model, messages=[USER])
    assert answer.choices[0].message.content == GREETING
    again = [USER, answer.choices[0].message, USER]
    assert client.chat.completions.create(model=server.model, messages=again).choices


def test_stream(client: OpenAI, server: Server) -> None:
    chunks = list(
        client.chat.completions.create(
            model=server.model,
            messages=[USER],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == GREETING
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: OpenAI, server: Server, stream: bool) -> None:
    fields: dict[str, Any] = {"model": server.model, "tools": TOOLS}
    if stream:
        with client.chat.completions.stream(messages=[USER], **fields) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(messages=[USER], **fields).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"place": "Bern"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "20"}
    last = client.chat.completions.create(messages=[USER, message, result], **fields)
    assert last.choices[0].message.content == "The tool says: 20"


def test_structured(client: OpenAI, server: Server) -> None:
    answer = client.chat.completions.parse(
        model=server.model, messages=[USER], response_format=Place
    )
    assert answer.choices[0].message.parsed == Place(name="Bern", people=20)


def test_reasoning(client: OpenAI, server: Server) -> None:
    asked = [{"role": "user", "content": "Please think."}]
    answer = client.chat.completions.create(model=server.model, messages=asked)
    assert answer.choices[0].message.reasoning_content.strip() == "I greet."
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_errors(server: Server) -> None:
    client = OpenAI(base_url=server.v1, api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.models.list()
    client = OpenAI(base_url=server.v1, api_key=server.key, max_retries=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=server.model, messages=[USER], temperature=7)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[USER])


def test_responses(client: OpenAI, server: Server) -> None:
    answer = client.responses.create(model=server.model, input="Hello")
    assert answer.output_text == GREETING
    with client.responses.stream(model=server.model, input="Hello") as events:
        for _ in events:
            pass
        assert events.get_final_response().output_text == GREETING


def test_responses_withheld(client: OpenAI, server: Server) -> None:
    answer = client.responses.create(model=server.model, input="Please withhold.")
    with client.responses.stream(model=server.model, input="Please withhold.") as events:
        assert [event.type for event in events][-1] == "response.incomplete"
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "content_filter"
    assert answer.incomplete_details.to_dict()["stop_reason"] == "test_policy"


@pytest.mark.parametrize("dumped", [False, True])
def test_responses_tools(client: OpenAI, server: Server, dumped: bool) -> None:
    """`dumped`: with every field that the client's objects have, null or not."""
    said: list[Any] = [USER]
    answer = client.responses.create(model=server.model, input=said, tools=FLAT)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("weather", '{"place": "Bern"}')
    said += [item.model_dump() for item in answer.output] if dumped else answer.output
    said += [{"type": "function_call_output", "call_id": call.call_id, "output": "20"}]
    last = client.responses.create(model=server.model, input=said, tools=FLAT)
    assert last.output_text == "The tool says: 20"


def test_responses_structured(client: OpenAI, server: Server) -> None:
    answer = client.responses.parse(model=server.model, input="Hello", text_format=Place)
    assert answer.output_parsed == Place(name="Bern", people=20)
