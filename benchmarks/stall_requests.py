"""What stalls.py sends: one of each class of hostile request, all of them within every limit that
the sizes of messages and bodies set. Not all are answered with an error: some are only much.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import stall_frames
import stall_messages

from tandem.cli.stack import Stack

MIB = 2**20
CONTEXT = 131_072
"""Tokens: as models have them today."""
Send = stall_messages.Send
_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_MANY = {"n": 128, "max_tokens": 16, "timeout": 20}
_SCHEMA = {
    "type": "object",
    "properties": {f"field{number}": {"type": "string"} for number in range(20)},
}


def post(path: str, body: Callable[[], Mapping[str, Any]]) -> Send:
    """A request whose answer is read to its end."""

    def send(stack: Stack) -> str:
        content = json.dumps({"model": stack.model, **body()})
        address = stack.components["frontend"].address
        connection = http.client.HTTPConnection(address, timeout=30)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request(
                    "POST", path, content, headers={"Content-Type": "application/json"}
                )
            response = connection.getresponse()
            size = len(response.read())
            return f"{response.status}, {size} bytes"
        except TimeoutError:
            return "none"
        finally:
            connection.close()

    return send


def pipelined(stack: Stack) -> str:
    """Thousands of requests in one write."""
    host, _, port = stack.components["frontend"].address.rpartition(":")
    request = f"GET /version HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        threading.Thread(target=connection.sendall, args=(5000 * request,)).start()
        seen = 0
        while seen < 5000:
            seen += connection.recv(MIB).count(b"HTTP/1.1 200")
    return "200"


def chunked(stack: Stack) -> str:
    """A body in pieces of one byte."""
    host, _, port = stack.components["frontend"].address.rpartition(":")
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(head.encode() + 500_000 * b"1\r\n \r\n" + b"0\r\n\r\n")
        return connection.recv(MIB)[9:12].decode()


def abandoned(stack: Stack) -> str:
    """A client that goes away from many outputs."""
    host, _, port = stack.components["frontend"].address.rpartition(":")
    body = json.dumps({"model": stack.model, "prompt": "Hello", "stream": True, **_MANY}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    for _ in range(8):
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head.encode() + body)
            status = connection.recv(100)[9:12].decode()
    return status


def _messages(count: int, text: str = "a") -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}] * count


CLASSES: Mapping[str, Send] = {
    "nothing": lambda stack: time.sleep(3) or "",
    "chat of 15 MiB": post(_CHAT, lambda: {"messages": _messages(1, "word " * (3 * MIB))}),
    "chat of 32 Ki Japanese letters": post(
        _CHAT, lambda: {"messages": _messages(1, "日本語の文" * 6554)}
    ),
    "chat of 31 KiB": post(_CHAT, lambda: {"messages": _messages(1, "a1_" * 10_400)}),
    "tool of a type of 15 KB": post(
        _CHAT, lambda: {"messages": _messages(1), "tools": [{"type": "_" * 15_000 + "x"}]}
    ),
    "300,000 messages": post(_CHAT, lambda: {"messages": _messages(300_000)}),
    "500,000 parts of a message": post(
        _CHAT,
        lambda: {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 450_000}]
        },
    ),
    "256 prompts of 8 KB": post(
        _COMPLETIONS, lambda: {"prompt": ["word " * 1600] * 256, "max_tokens": 2}
    ),
    "echo of 1,000,000 ids": post(
        _COMPLETIONS, lambda: {"prompt": [5] * 1_000_000, "echo": True, "max_tokens": 1}
    ),
    "echo of 500 KB, n=128": post(
        _COMPLETIONS, lambda: {"prompt": "word " * 20_000, "echo": True, "max_tokens": 2, "n": 128}
    ),
    "prompt of 100,000 ids, n=128": post(
        _COMPLETIONS, lambda: {"prompt": [5] * 100_000, "max_tokens": 2, "n": 128}
    ),
    "/tokenize of 15 MiB": post("/tokenize", lambda: {"prompt": "word " * (3 * MIB)}),
    "/detokenize of 4,000,000 ids": post("/detokenize", lambda: {"tokens": [205] * 4_000_000}),
    "2,000,000 empty lists": post(
        _CHAT, lambda: {"messages": _messages(1), "guided_json": {"a": [[]] * 2_000_000}}
    ),
    "schema of 200 KB, n=128": post(
        _CHAT,
        lambda: {"messages": _messages(1), "guided_json": {"description": "a" * 200_000}, **_MANY},
    ),
    "schema of 20 fields, n=128": post(
        _CHAT, lambda: {"messages": _messages(1), "guided_json": _SCHEMA, **_MANY}
    ),
    "choice of 40 KB": post(
        _CHAT, lambda: {"messages": _messages(1), "guided_choice": ["a" * 40_000], "timeout": 10}
    ),
    "1,024 biases, n=128": post(
        _CHAT,
        lambda: {
            "messages": _messages(1),
            "logit_bias": dict.fromkeys(map(str, range(1024)), 1),
            **_MANY,
        },
    ),
    "n=128, 20 logprobs": post(
        _CHAT,
        lambda: {"messages": _messages(1), "logprobs": True, "top_logprobs": 20, **_MANY},
    ),
    "n=128, 20 logprobs, streamed": post(
        _CHAT,
        lambda: {
            "messages": _messages(1),
            "logprobs": True,
            "top_logprobs": 20,
            "stream": True,
            **_MANY,
        },
    ),
    "n=128, completions with 20 logprobs": post(
        _COMPLETIONS, lambda: {"prompt": "Hello", "logprobs": 20, **_MANY}
    ),
    "n=128, 512 tokens each": post(
        _COMPLETIONS, lambda: {"prompt": "Hello", **_MANY, "max_tokens": 512}
    ),
    "5,000 pipelined GETs": pipelined,
    "500,000 chunks of a body": chunked,
    "8 clients leave n=128": abandoned,
    **stall_messages.CLASSES,
    **stall_frames.CLASSES,
}
