"""LlamaIndex over chats."""

from __future__ import annotations

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from conftest import GREETING, Server


class Place(BaseModel):
    """A place."""

    name: str
    people: int


def model(server: Server) -> OpenAILike:
    return OpenAILike(
        model=server.model,
        api_base=server.v1,
        api_key=server.key,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )


def weather(place: str) -> str:
    """The weather of a place."""
    return f"20 degrees in {place}"


def test_chat(server: Server) -> None:
    assert str(model(server).complete("Hello")) == GREETING


def test_stream(server: Server) -> None:
    assert "".join(chunk.delta for chunk in model(server).stream_complete("Hello")) == GREETING


async def test_tools(server: Server) -> None:
    said = await FunctionAgent(tools=[weather], llm=model(server)).run("Hello")
    assert str(said) == "The tool says: 20 degrees in Bern"


def test_structured(server: Server) -> None:
    from llama_index.core.prompts import PromptTemplate

    made = model(server).structured_predict(Place, PromptTemplate("Hello"))
    assert made == Place(name="Bern", people=20)
