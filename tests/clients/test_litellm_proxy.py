"""LiteLLM's proxy before the frontend, by OpenAI's own client."""

from __future__ import annotations

import json
import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from conftest import GREETING, Server

PROXY_KEY = "sk-proxy"
MODEL = "through-the-proxy"
START_SECONDS = 120
STOP_SECONDS = 30
USER: dict[str, Any] = {"role": "user", "content": "Hello"}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
FLAT: list[Any] = [{"type": "function", "name": "weather", "parameters": PARAMETERS}]


class Place(BaseModel):
    name: str
    people: int


@pytest.fixture(scope="session")
def proxy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address."""
    config = tmp_path_factory.mktemp("proxy") / "config.yaml"
    config.write_text(json.dumps(settings(server)), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("litellm")), "--config", str(config)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    try:
        yield address_of(process)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def settings(server: Server) -> dict[str, Any]:
    """JSON is YAML too."""
    behind = {
        "model": f"openai/{server.model}",
        "api_base": server.v1,
        "api_key": server.key,
    }
    return {
        "model_list": [{"model_name": MODEL, "litellm_params": behind}],
        "general_settings": {"master_key": PROXY_KEY},
        "router_settings": {"num_retries": 0},
    }


def address_of(process: subprocess.Popen[str]) -> str:
    """Where the proxy says that it listens. What it says further is read too, and dropped."""
    assert process.stderr is not None
    addresses: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(process.stderr, addresses), daemon=True).start()
    return addresses.get(timeout=START_SECONDS)


def _read(lines: IO[str], addresses: queue.Queue[str]) -> None:
    for line in lines:
        print(line, end="")
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", line):
            addresses.put(found[1])


@pytest.fixture
def client(proxy: str) -> OpenAI:
    return OpenAI(base_url=f"{proxy}/v1", api_key=PROXY_KEY, max_retries=0)


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[USER])
    assert answer.choices[0].message.content == GREETING
    assert answer.usage.completion_tokens > 0
    again = [USER, answer.choices[0].message, USER]
    assert client.chat.completions.create(model=MODEL, messages=again).choices


def test_stream(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=[USER], stream=True, stream_options={"include_usage": True}
        )
    )
    said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(said) == GREETING
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: OpenAI, stream: bool) -> None:
    fields: dict[str, Any] = {"model": MODEL, "tools": TOOLS}
    if stream:
        with client.chat.completions.stream(messages=[USER], **fields) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(messages=[USER], **fields).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"place": "Bern"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "20"}
    last = client.chat.completions.create(messages=[USER, choice.message, result], **fields)
    assert last.choices[0].message.content == "The tool says: 20"


def test_structured(client: OpenAI) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=[USER], response_format=Place)
    assert answer.choices[0].message.parsed == Place(name="Bern", people=20)


def test_reasoning(client: OpenAI) -> None:
    asked = [{"role": "user", "content": "Please think."}]
    answer = client.chat.completions.create(model=MODEL, messages=asked)
    assert answer.choices[0].message.reasoning_content.strip() == "I greet."
    assert answer.usage.completion_tokens_details.reasoning_tokens > 0


def test_responses(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Hello")
    assert answer.output_text == GREETING


def test_responses_tools(client: OpenAI) -> None:
    said: list[Any] = [USER]
    answer = client.responses.create(model=MODEL, input=said, tools=FLAT)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert (call.name, call.arguments) == ("weather", '{"place": "Bern"}')
    said += answer.output
    said += [{"type": "function_call_output", "call_id": call.call_id, "output": "20"}]
    last = client.responses.create(model=MODEL, input=said, tools=FLAT)
    assert last.output_text == "The tool says: 20"


def test_errors(client: OpenAI) -> None:
    """They keep their class, and one request's does not put the model aside for the others."""
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=MODEL, messages=[USER], temperature=7)
    with pytest.raises(openai.BadRequestError, match="ContextWindowExceeded"):
        client.chat.completions.create(model=MODEL, messages=[USER | {"content": "x " * 5000}])
    assert client.chat.completions.create(model=MODEL, messages=[USER]).choices
