"""Pydantic AI, over chats, responses and messages."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import GREETING, Server

KINDS = ["chat", "responses", "messages"]


class Place(BaseModel):
    name: str
    people: int


def model(server: Server, kind: str) -> Any:
    if kind == "messages":
        from anthropic import AsyncAnthropic

        client = AsyncAnthropic(base_url=server.root, api_key=server.key, max_retries=0)
        provider = AnthropicProvider(anthropic_client=client)
        # The default, 16384, is more than this model's whole context.
        return AnthropicModel(server.model, provider=provider, settings={"max_tokens": 500})
    made = OpenAIChatModel if kind == "chat" else OpenAIResponsesModel
    return made(server.model, provider=OpenAIProvider(base_url=server.v1, api_key=server.key))


def weather(place: str) -> str:
    """The weather of a place."""
    return f"20 degrees in {place}"


@pytest.mark.parametrize("kind", KINDS)
def test_chat(server: Server, kind: str) -> None:
    assert Agent(model(server, kind)).run_sync("Hello").output == GREETING


@pytest.mark.parametrize("kind", KINDS)
def test_tools(server: Server, kind: str) -> None:
    ran = Agent(model(server, kind), tools=[weather]).run_sync("Hello")
    assert ran.output == "The tool says: 20 degrees in Bern"


@pytest.mark.parametrize("kind", KINDS)
async def test_stream(server: Server, kind: str) -> None:
    async with Agent(model(server, kind)).run_stream("Hello") as ran:
        assert await ran.get_output() == GREETING


@pytest.mark.parametrize("kind", KINDS)
def test_structured(server: Server, kind: str) -> None:
    ran = Agent(model(server, kind), output_type=Place).run_sync("Hello")
    assert ran.output == Place(name="Bern", people=20)


@pytest.mark.parametrize("kind", ["chat", "responses"])
def test_structured_natively(server: Server, kind: str) -> None:
    ran = Agent(model(server, kind), output_type=NativeOutput(Place)).run_sync("Hello")
    assert ran.output == Place(name="Bern", people=20)
