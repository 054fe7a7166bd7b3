"""LiteLLM as a library: chats, responses and messages."""

from __future__ import annotations

from typing import Any

import litellm
import pytest
from pydantic import BaseModel

from conftest import GREETING, Server

USER: dict[str, Any] = {"role": "user", "content": "Hello"}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]


class Place(BaseModel):
    name: str
    people: int


def fields(server: Server) -> dict[str, Any]:
    return {
        "model": f"openai/{server.model}",
        "api_base": server.v1,
        "api_key": server.key,
        "num_retries": 0,
    }


def test_chat(server: Server) -> None:
    answer = litellm.completion(messages=[USER], **fields(server))
    assert answer.choices[0].message.content == GREETING


def test_stream(server: Server) -> None:
    chunks = litellm.completion(messages=[USER], stream=True, **fields(server))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == GREETING


def test_tools(server: Server) -> None:
    answer = litellm.completion(messages=[USER], tools=TOOLS, **fields(server))
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"place": "Bern"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "20"}
    said = [USER, message, result]
    last = litellm.completion(messages=said, tools=TOOLS, **fields(server))
    assert last.choices[0].message.content == "The tool says: 20"


def test_structured(server: Server) -> None:
    answer = litellm.completion(messages=[USER], response_format=Place, **fields(server))
    made = Place.model_validate_json(answer.choices[0].message.content)
    assert made == Place(name="Bern", people=20)


def test_reasoning(server: Server) -> None:
    asked = [{"role": "user", "content": "Please think."}]
    answer = litellm.completion(messages=asked, **fields(server))
    assert answer.choices[0].message.reasoning_content.strip() == "I greet."


def test_responses(server: Server) -> None:
    answer = litellm.responses(input="Hello", **fields(server))
    assert answer.output[0].content[0].text == GREETING


def test_errors(server: Server) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[USER | {"content": "x " * 5000}], **fields(server))
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=[USER], **fields(server) | {"api_key": "wrong"})
