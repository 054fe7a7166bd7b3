"""OpenAI's Agents, over responses and over chats."""

from __future__ import annotations

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from conftest import GREETING, Server

set_tracing_disabled(True)
KINDS = [OpenAIChatCompletionsModel, OpenAIResponsesModel]


class Place(BaseModel):
    name: str
    people: int


@function_tool
def weather(place: str) -> str:
    """The weather of a place."""
    return f"20 degrees in {place}"


def agent(server: Server, kind: type, **fields: object) -> Agent:
    client = AsyncOpenAI(base_url=server.v1, api_key=server.key, max_retries=0)
    model = kind(model=server.model, openai_client=client)
    return Agent(name="a", instructions="Be short.", model=model, **fields)


@pytest.mark.parametrize("kind", KINDS)
def test_chat(server: Server, kind: type) -> None:
    assert Runner.run_sync(agent(server, kind), "Hello").final_output == GREETING


@pytest.mark.parametrize("kind", KINDS)
def test_tools(server: Server, kind: type) -> None:
    ran = Runner.run_sync(agent(server, kind, tools=[weather]), "Hello")
    assert ran.final_output == "The tool says: 20 degrees in Bern"


@pytest.mark.parametrize("kind", KINDS)
async def test_stream(server: Server, kind: type) -> None:
    ran = Runner.run_streamed(agent(server, kind, tools=[weather]), "Hello")
    async for _ in ran.stream_events():
        pass
    assert ran.final_output == "The tool says: 20 degrees in Bern"


@pytest.mark.parametrize("kind", KINDS)
def test_structured(server: Server, kind: type) -> None:
    ran = Runner.run_sync(agent(server, kind, output_type=Place), "Hello")
    assert ran.final_output == Place(name="Bern", people=20)
