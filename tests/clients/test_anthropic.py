"""Anthropic's own client."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from conftest import GREETING, Server

USER: dict[str, Any] = {"role": "user", "content": "Hello"}
TOOLS: list[Any] = [
    {
        "name": "weather",
        "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
    }
]


@pytest.fixture
def client(server: Server) -> Anthropic:
    return Anthropic(base_url=server.root, api_key=server.key, max_retries=0)


def test_chat(client: Anthropic, server: Server) -> None:
    answer = client.messages.create(model=server.model, max_tokens=50, messages=[USER])
    assert answer.content[0].text == GREETING
    assert answer.stop_reason == "end_turn"
    counted = client.messages.count_tokens(model=server.model, messages=[USER])
    assert counted.input_tokens == answer.usage.input_tokens


def test_stream(client: Anthropic, server: Server) -> None:
    with client.messages.stream(model=server.model, max_tokens=50, messages=[USER]) as stream:
        assert "".join(stream.text_stream) == GREETING
        assert stream.get_final_message().usage.output_tokens > 0


def test_withheld(client: Anthropic, server: Server) -> None:
    asked: Any = [{"role": "user", "content": "Please withhold."}]
    fields: dict[str, Any] = {"model": server.model, "max_tokens": 50, "messages": asked}
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    for message in (client.messages.create(**fields), streamed):
        assert message.stop_reason == "refusal"
        assert message.stop_details is not None
        assert message.stop_details.explanation == "test_policy"


@pytest.mark.parametrize("dumped", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: Anthropic, server: Server, stream: bool, dumped: bool) -> None:
    """`dumped`: with every field that the client's objects have, null or not."""
    fields: dict[str, Any] = {"model": server.model, "max_tokens": 500, "tools": TOOLS}
    if stream:
        with client.messages.stream(messages=[USER], **fields) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(messages=[USER], **fields)
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert (call.name, call.input) == ("weather", {"place": "Bern"})
    content = [block.model_dump() for block in message.content] if dumped else message.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "20"}
    said = [
        USER,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [result]},
    ]
    last = client.messages.create(messages=said, **fields)
    assert last.content[0].text == "The tool says: 20"


def test_reasoning(client: Anthropic, server: Server) -> None:
    asked = [{"role": "user", "content": "Please think."}]
    answer = client.messages.create(
        model=server.model,
        max_tokens=2000,
        messages=asked,
        thinking={"type": "enabled", "budget_tokens": 1024},
    )
    assert answer.content[0].thinking.strip() == "I greet."
    assert answer.content[1].text.strip() == GREETING


def test_errors(server: Server) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        Anthropic(base_url=server.root, api_key="wrong", max_retries=0).models.list()
    client = Anthropic(base_url=server.root, api_key=server.key, max_retries=0)
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="other", max_tokens=50, messages=[USER])
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(
            model=server.model, max_tokens=50, messages=[USER], extra_body={"top_k": -9}
        )
