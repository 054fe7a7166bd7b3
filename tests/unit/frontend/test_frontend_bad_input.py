"""Every kind of bad input gets its documented error, at once, and the frontend keeps serving."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness import CHAT, COMPLETION, PATIENCE, Harness, error_of, request_bytes, say_hello, serving
from one_case import one_case

pytestmark = pytest.mark.asyncio(loop_scope="module")
MESSAGE = {"role": "user", "content": "x"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(model_path: Path) -> AsyncIterator[Harness]:
    """One frontend with its default settings for all tests here; at the end it is still sound."""
    async with serving(model_path, say_hello, {}) as harness:
        yield harness
        assert (await harness.chat()).status_code == 200


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | fields}


def chosen(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SAID = {"role": "assistant", "content": "Hi"}
BAD_CHATS: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [MESSAGE, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{**MESSAGE, "rule": "user"}]}, "messages[0].rule"),
    ({"model": 3}, "model"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 10**30}, "n"),
    ({"n": True}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1}, "min_p"),
    ({"seed": -2}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
    ({"logit_bias": {"2048": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": "x" * 257}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ["x" * 257]}, "stop[0]"),
    ({"stop_token_ids": [2048]}, "stop_token_ids"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": {"shout": True}}, "stream_options.shout"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": 1e-300}, "timeout"),
    ({"timeout": 0.0009}, "timeout"),
    ({"timeout": 601}, "timeout"),
    ({"priority": 101}, "priority"),
    ({"modle": "x"}, "modle"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [tool("no blanks")]}, "tools[0].function.name"),
    ({"tools": [tool("f"), tool("f")]}, "tools"),
    ({"tools": [tool(f"f{place}") for place in range(129)]}, "tools"),
    ({"functions": [{}]}, "functions[0].name"),
    ({"functions": [{"name": "f"}], "tools": [tool("f")]}, "functions"),
    ({"tools": [tool("f")], "function_call": "auto"}, "function_call"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "always", "tools": [tool("f")]}, "tool_choice"),
    ({"tool_choice": chosen("g"), "tools": [tool("f")]}, "tool_choice"),
    ({"tool_choice": chosen("f")}, "tool_choice"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"messages": [MESSAGE | {"tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    ({"messages": [SAID | {"tool_calls": [{"id": "a"}]}]}, "messages[0].tool_calls[0].function"),
    (
        {"messages": [SAID | {"tool_calls": [CALL | {"function": {}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    ({"messages": [SAID | {"tool_calls": [CALL] * 129}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name"),
    ({"messages": [{"role": "tool", "tool_call_id": "a"}]}, "messages[0].content"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
    ({"chat_template_kwargs": {"bos_token": ""}}, "chat_template_kwargs.bos_token"),
    ({"chat_template_kwargs": {f"o{n}": 1 for n in range(65)}}, "chat_template_kwargs"),
    ({"continue_final_message": True}, "continue_final_message"),
    (
        {"messages": [SAID], "continue_final_message": True, "add_generation_prompt": True},
        "add_generation_prompt",
    ),
    ({"reasoning_effort": "huge"}, "reasoning_effort"),
    ({"thinking_token_budget": -2}, "thinking_token_budget"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"json_schema": "[]"}, "json_schema"),
]


@pytest.mark.promise("S6-140")
@one_case(("fields", "param"), BAD_CHATS, ids=lambda v: str(v)[:60])
async def test_a_bad_field_is_refused_by_name(
    shared: Harness, fields: dict[str, Any], param: str
) -> None:
    assert error_of(await shared.chat(**fields)) == (400, "invalid_request", param)


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"store": True}, "store"),
    ({"messages": [{**MESSAGE, "refusal": "No."}]}, "messages[0].refusal"),
    ({"tandem": {"report": True}}, "tandem.report"),
    ({"logits_processors": [{"name": "forced_sequence"}]}, "logits_processors[0].name"),
]


@pytest.mark.promise("S6-140")
@one_case(("fields", "param"), UNSUPPORTED, ids=lambda v: str(v)[:60])
async def test_what_is_not_offered_is_refused_and_never_ignored(
    shared: Harness, fields: dict[str, Any], param: str
) -> None:
    assert error_of(await shared.chat(**fields)) == (400, "unsupported_parameter", param)


BAD_COMPLETIONS: list[tuple[dict[str, Any], tuple[int, str, str]]] = [
    ({"prompt": ""}, (400, "invalid_request", "prompt")),
    ({"prompt": []}, (400, "invalid_request", "prompt")),
    ({"prompt": [[]]}, (400, "invalid_request", "prompt")),
    ({"prompt": ["a", ""]}, (400, "invalid_request", "prompt")),
    ({"prompt": ["a", 1]}, (400, "invalid_request", "prompt")),
    ({"prompt": [1, -1]}, (400, "invalid_request", "prompt[1]")),
    ({"prompt": [2048]}, (400, "invalid_request", "prompt")),
    ({"prompt": [[1], [2**32]]}, (400, "invalid_request", "prompt[1][0]")),
    ({"prompt": [1] * 4096}, (400, "context_length_exceeded", "prompt")),
    ({"prompt": [1], "max_tokens": 4096}, (400, "context_length_exceeded", "prompt")),
    ({"prompt": ["a"] * 257}, (400, "invalid_request", "prompt")),
    ({"prompt": ["a"] * 128, "n": 3}, (400, "invalid_request", "prompt")),
    ({"prompt": {"x": 1}}, (400, "invalid_request", "prompt")),
    ({"echo": True, "detokenize": False}, (400, "unsupported_parameter", "echo")),
    ({"suffix": "x"}, (400, "unsupported_parameter", "suffix")),
    ({"best_of": 2}, (400, "unsupported_parameter", "best_of")),
    ({"model": "other"}, (404, "model_not_found", "model")),
]


@one_case(("fields", "error"), BAD_COMPLETIONS, ids=lambda v: str(v)[:60])
async def test_a_bad_completion_is_refused_by_name(
    shared: Harness, fields: dict[str, Any], error: tuple[int, str, str]
) -> None:
    assert error_of(await shared.complete(**fields)) == error


BODIES = {
    "empty": b"",
    "cut": b'{"model": "tand',
    "no object": b"[1, 2]",
    "number": b"7",
    "trailing": json.dumps(CHAT).encode() + b"x",
    "invalid utf-8": b'{"model": "\xff\xfe"}',
    "bare invalid bytes": b"\x80\x81",
    "lone surrogate": b'{"model": "\\ud800"}',
    "not a number": b'{"temperature": NaN}',
    "too large a number": b'{"temperature": 1e999}',
    "deep": b'{"logits_processors":[{"name":"x","args":{"a":' + b"[" * 100_000,
    "nul": b"\x00" * 10,
}


@pytest.mark.promise("S6-140")
@one_case("body", [pytest.param(body, id=name) for name, body in BODIES.items()])
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]
)
async def test_a_body_that_is_no_request_is_refused(
    shared: Harness, path: str, body: bytes
) -> None:
    response = await shared.http.post(path, content=body)
    assert error_of(response)[:2] == (400, "invalid_request")


async def test_paths_and_methods_that_do_not_exist_are_said_so_in_openais_shape(
    shared: Harness,
) -> None:
    other = await shared.http.post("/v1/embeddings", json={"input": "x"})
    assert error_of(other) == (404, "not_found", None)
    assert "/v1/chat/completions" in other.json()["error"]["message"]
    assert error_of(await shared.http.get("/v1/models/other")) == (404, "model_not_found", "model")
    response = await shared.http.get("/v1/chat/completions")
    assert error_of(response) == (405, "method_not_allowed", None)
    assert response.headers["allow"] == "POST"
    assert error_of(await shared.http.delete("/health"))[0] == 405
    body = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert (await shared.raw(body)).startswith(b"HTTP/1.1 200 ")


async def test_what_is_no_http_is_refused_in_the_same_shape(shared: Harness) -> None:
    answer = await shared.raw(b"\x16\x03\x01\x02\x00 hello\r\n\r\n", until_closed=True)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"


@pytest.mark.promise("S6-140")
async def test_after_bad_requests_a_kept_connection_serves_good_ones(shared: Harness) -> None:
    reader, writer = await shared.connect()
    for body, status in ((b"{", 400), (json.dumps(COMPLETION).encode(), 200), (b"", 400)):
        writer.write(request_bytes(body, path="/v1/completions"))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
        assert head.startswith(b"HTTP/1.1 %d " % status)
        length = next(h for h in head.split(b"\r\n") if h.startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
    writer.close()
