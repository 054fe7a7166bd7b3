"""Images, sound, films and files in a prompt: refused by name in each dialect, before a worker."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from harness import MODEL, Harness, error_of, say_hello, serving
from one_case import one_case

pytestmark = pytest.mark.asyncio(loop_scope="module")
LISTENER = socket.create_server(("127.0.0.1", 0))
"""Whoever fetched an image would come here."""
URL = f"http://127.0.0.1:{LISTENER.getsockname()[1]}/secret"
PIXEL = "data:image/png;base64,iVBORw0KGgo="
PARTS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": {"url": URL}},
    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}},
    {"type": "image_url", "image_url": "file:///etc/passwd"},
    {"type": "image", "image": URL},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}},
    {"type": "image", "source": {"type": "url", "url": URL}},
    {"type": "input_image", "image_url": URL, "detail": "auto"},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "image_embeds", "image_embeds": "AAAA"},
    {"type": "image_pil", "image_pil": "AAAA"},
    {"type": "video_url", "video_url": {"url": URL}},
    {"type": "video", "video": [URL]},
    {"type": "input_video", "video_url": URL},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "audio_url", "audio_url": {"url": URL}},
    {"type": "audio", "audio": URL},
    {"type": "audio_embeds", "audio_embeds": "AAAA"},
    {"type": "file", "file": {"file_id": "file-1"}},
    {"type": "input_file", "file_data": "AAAA", "filename": "a.pdf"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(model_path: Path) -> AsyncIterator[Harness]:
    LISTENER.setblocking(False)
    async with serving(model_path, say_hello, {}) as harness:
        yield harness
    LISTENER.close()


def _said(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}]


def _result(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a tool, in Anthropic's shape."""
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [part]}
    return [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]


def _output(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a tool, in the shape of responses."""
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": "a", "output": [part]}]


@pytest.mark.promise("S6-380")
@one_case("part", PARTS, ids=lambda part: "-".join(map(str, part))[:40])
@one_case("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions", lambda part: {"messages": _said(part)}, "messages[0].content[1]"),
        ("responses", lambda part: {"input": _said(part)}, "input[0].content[1]"),
        ("responses", lambda part: {"input": _output(part)}, "input[1].output[0]"),
        ("messages", lambda part: {"messages": _said(part)}, "messages[0].content[1]"),
        ("messages", lambda part: {"messages": _result(part)}, "messages[2].content[0].content[0]"),
    ],
    ids=["chats", "responses", "responses-output", "messages", "messages-result"],
)
async def test_what_is_no_text_is_refused_by_name(
    served: Harness, path: str, body: Any, param: str, part: dict[str, Any], stream: bool
) -> None:
    asked = {"model": MODEL, "max_tokens": 5, "stream": stream} | body(part)
    if path == "responses":
        del asked["max_tokens"]
        asked["input"][0].get("content", [{}])[0].update({"type": "input_text"})
    refused = await served.http.post(f"/v1/{path}", json=asked)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert "only text is offered" in error["message"]
    assert f"{param}.type" in error["message"]
    if path == "messages":
        assert error["type"] == "invalid_request_error"
    else:
        assert error_of(refused)[1:] == ("unsupported_parameter", f"{param}.type")
    assert "secret" not in refused.text
    assert served.router.replies == {}, "none may come to a router"
    with pytest.raises(BlockingIOError):
        LISTENER.accept()
