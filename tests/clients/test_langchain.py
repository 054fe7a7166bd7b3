"""LangChain, over chats, responses and messages."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from conftest import GREETING, Server

KINDS = ["chat", "responses", "messages"]


class Place(BaseModel):
    name: str
    people: int


@tool
def weather(place: str) -> str:
    """The weather of a place."""
    return f"20 degrees in {place}"


def model(server: Server, kind: str) -> Any:
    if kind == "messages":
        return ChatAnthropic(
            model=server.model,
            base_url=server.root,
            api_key=server.key,
            max_retries=0,
            max_tokens=500,  # the default is this model's whole context
        )
    return ChatOpenAI(
        model=server.model,
        base_url=server.v1,
        api_key=server.key,
        max_retries=0,
        use_responses_api=kind == "responses",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_chat(server: Server, kind: str) -> None:
    assert model(server, kind).invoke("Hello").text == GREETING


@pytest.mark.parametrize("kind", KINDS)
def test_stream(server: Server, kind: str) -> None:
    assert "".join(chunk.text for chunk in model(server, kind).stream("Hello")) == GREETING


@pytest.mark.parametrize("kind", KINDS)
def test_tools(server: Server, kind: str) -> None:
    agent = create_agent(model(server, kind), tools=[weather])
    ran = agent.invoke({"messages": [{"role": "user", "content": "Hello"}]})
    assert ran["messages"][-1].text == "The tool says: 20 degrees in Bern"


@pytest.mark.parametrize("kind", KINDS)
def test_structured(server: Server, kind: str) -> None:
    made = model(server, kind).with_structured_output(Place).invoke("Hello")
    assert made == Place(name="Bern", people=20)
