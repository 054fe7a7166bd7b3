"""Valid requests of every kind: what HTTP and JSON inputs are made from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from .target import MODEL

_CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
_PROMPT = {"model": MODEL, "prompt": "Hello", "max_tokens": 3}
_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "^[a-z]+$"}, "b": {"$ref": "#/$defs/n"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"n": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}},
}
FORMS: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": _SCHEMA}}},
    {"guided_json": _SCHEMA},
    {"guided_regex": "(yes|no)[0-9]{1,3}(?:a|b)?"},
    {"guided_choice": ["yes", "no", "perhaps"]},
    {"guided_grammar": 'root ::= "a" list\nlist ::= "b" | "c" list'},
)
CHATS: tuple[dict[str, Any], ...] = (
    _CHAT,
    _CHAT | {"stream": True, "stream_options": {"include_usage": True}},
    _CHAT | {"n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 7},
    _CHAT | {"logprobs": True, "top_logprobs": 2, "stop": ["x", "y"], "user": "u"},
    _CHAT | {"logit_bias": {"5": 1.5, "6": -100}, "max_completion_tokens": 4, "priority": 3},
    _CHAT | {"frequency_penalty": 1, "presence_penalty": -1, "repetition_penalty": 1.2},
    {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "Be short.", "name": "s"},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": "Ho"},
            {"role": "user", "content": "Hum"},
        ],
        "metadata": {"k": "v"},
        "tandem": {"report": True, "external_scores": True},
        "timeout": 5,
    },
)
COMPLETIONS: tuple[dict[str, Any], ...] = (
    _PROMPT,
    _PROMPT | {"stream": True, "echo": True},
    _PROMPT | {"prompt": ["a", "b"], "n": 2, "stop": "x", "ignore_eos": True},
    _PROMPT | {"prompt": [[5, 6], [7]], "detokenize": False, "stream": True},
    _PROMPT | {"prompt": [5, 6, 7], "logprobs": 1, "stop_token_ids": [9]},
    _PROMPT | {"logits_processors": [{"name": "forced_sequence", "args": {"token_ids": [5, 6]}}]},
)
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/tokenize", {"prompt": "Hello there", "add_special_tokens": False}),
    ("/tokenize", {"model": MODEL, "messages": _CHAT["messages"]}),
    ("/detokenize", {"model": MODEL, "tokens": [5, 6, 7]}),
)
GETS = ("/live", "/ready", "/health", "/version", "/v1/models", f"/v1/models/{MODEL}", "/docs")


@cache
def bodies() -> Sequence[bytes]:
    """Of requests that generate."""
    forms = [_CHAT | form for form in FORMS]
    return [json.dumps(body).encode() for body in (*CHATS, *COMPLETIONS, *forms)]


@cache
def form_bodies() -> Sequence[bytes]:
    """Of chats that ask for a form."""
    return [json.dumps(_CHAT | form).encode() for form in FORMS]


@cache
def requests() -> Sequence[bytes]:
    """Whole requests, as bytes."""
    posts = [("/v1/chat/completions", body) for body in (*CHATS, *(_CHAT | f for f in FORMS))]
    posts += [("/v1/completions", body) for body in COMPLETIONS]
    posts += OTHERS
    return [
        *(post(path, json.dumps(body).encode()) for path, body in posts),
        *(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode() for path in GETS),
        _chunked("/v1/completions", json.dumps(_PROMPT).encode()),
    ]


def post(path: str, body: bytes) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )


def _chunked(path: str, body: bytes) -> bytes:
    return (
        b"POST %b HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n"
        b"content-type: application/json\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (path.encode(), body[:5], len(body) - 5, body[5:])
    )
