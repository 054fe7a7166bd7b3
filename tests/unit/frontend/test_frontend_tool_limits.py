"""The settings that bound tools and their calls, in every dialect."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from harness import MODEL, Harness, serving
from spoken import Script

from tandem_frontend.openai.reading.bodies import SMALL_BYTES

pytestmark = pytest.mark.asyncio(loop_scope="module")
SETTINGS = {"model_family": "glm45", "max_tools": 2, "max_calls": 2, "max_call_characters": 100}
USER = {"role": "user", "content": "Hello"}
BROKEN = "tandem_frontend_broken_tool_calls_total"
SCRIPT = Script()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontend(model_path: Path) -> AsyncIterator[Harness]:
    async with serving(model_path, SCRIPT, SETTINGS) as harness:
        yield harness


def tools(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{place}"}} for place in range(count)]


def said(count: int) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "f0", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call] * count}


def chat(path: str, count: int, calls: int) -> tuple[str, dict[str, Any]]:
    return path, {"messages": [USER, said(calls), USER], "tools": tools(count)}


def older(count: int, calls: int) -> tuple[str, dict[str, Any]]:
    """A message has one call at most in this form."""
    del calls
    functions = [tool["function"] for tool in tools(count)]
    return "/v1/chat/completions", {"messages": [USER], "functions": functions}


def responses(count: int, calls: int) -> tuple[str, dict[str, Any]]:
    call = {"type": "function_call", "call_id": "a", "name": "f0", "arguments": "{}"}
    flat = [{"type": "function", "name": f"f{place}"} for place in range(count)]
    return "/v1/responses", {"input": [USER, *[call] * calls, USER], "tools": flat}


def messages(path: str, count: int, calls: int) -> tuple[str, dict[str, Any]]:
    block = {"type": "tool_use", "id": "a", "name": "f0", "input": {}}
    turns = [USER, {"role": "assistant", "content": [block] * calls}, USER]
    clients = [{"name": f"f{place}", "input_schema": {"type": "object"}} for place in range(count)]
    asked = {"messages": turns, "tools": clients}
    return path, asked if path.endswith("count_tokens") else asked | {"max_tokens": 9}


WAYS = {
    "chat": lambda count, calls: chat("/v1/chat/completions", count, calls),
    "functions": older,
    "tokenize": lambda count, calls: chat("/tokenize", count, calls),
    "responses": responses,
    "messages": lambda count, calls: messages("/v1/messages", count, calls),
    "count_tokens": lambda count, calls: messages("/v1/messages/count_tokens", count, calls),
}


async def send(frontend: Harness, way: str, count: int, calls: int, size: int) -> httpx.Response:
    path, body = WAYS[way](count, calls)
    return await frontend.http.post(path, json=body | {"model": MODEL, "invented": "x" * size})


@pytest.mark.promise("S6-315")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
@pytest.mark.parametrize("way", WAYS)
async def test_as_many_as_may_be_are_taken(frontend: Harness, way: str, size: int) -> None:
    SCRIPT.says("Well.")
    answer = await send(frontend, way, 2, 2, size)
    assert answer.status_code == 200, answer.text


@pytest.mark.promise("S6-315")
@pytest.mark.parametrize("size", [0, SMALL_BYTES], ids=["on the loop", "in a process"])
@pytest.mark.parametrize("way", WAYS)
async def test_more_tools_are_refused(frontend: Harness, way: str, size: int) -> None:
    param = "functions" if way == "functions" else "tools"
    answer = await send(frontend, way, 3, 2, size)
    assert refused(answer, param) == f"At most 2 `{param}` are taken"


@pytest.mark.promise("S6-315")
@pytest.mark.parametrize(
    ("way", "param"),
    [
        ("chat", "messages[1].tool_calls"),
        ("tokenize", "messages[1].tool_calls"),
        ("responses", "input"),
        ("messages", "messages"),
        ("count_tokens", "messages"),
    ],
)
async def test_more_calls_of_a_message_are_refused(frontend: Harness, way: str, param: str) -> None:
    answer = await send(frontend, way, 2, 3, 0)
    assert refused(answer, param) == "At most 2 calls may be in a message"


def refused(answer: httpx.Response, param: str) -> str:
    """What is said of the field, which Anthropic's shape names in the message alone."""
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    message: str = error["message"]
    if "param" in error:
        assert error["param"] == param
    else:
        assert f"`{param}`" in message
    return message.removesuffix(f": `{param}`")


@pytest.mark.promise("S6-315")
@pytest.mark.parametrize(("value", "called"), [("x" * 20, True), ("x" * 60, False)])
async def test_a_call_longer_than_may_be_held_is_text(
    frontend: Harness, value: str, called: bool
) -> None:
    text = f"<tool_call>f0\n<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"
    assert (len(text) <= 100) == called
    SCRIPT.says(*text)
    broken = await frontend.metric(BROKEN)
    answer = await frontend.chat(tools=tools(1))
    message = answer.json()["choices"][0]["message"]
    assert ("tool_calls" in message) == called
    assert message.get("content") == (None if called else text)
    assert await frontend.metric(BROKEN) - broken == (not called)
