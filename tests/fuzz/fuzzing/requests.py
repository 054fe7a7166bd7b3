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
    {"structured_outputs": {"json": _SCHEMA, "disable_any_whitespace": True}},
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"json_schema": json.dumps(_SCHEMA)},
    {"regex": "[0-9]{1,3}"},
)
_TOOL = {"type": "function", "function": {"name": "f", "parameters": _SCHEMA, "strict": True}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
_TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning_content": "Hm."},
    {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "5"}]},
]
_OLDER = [
    {"role": "assistant", "function_call": {"name": "f", "arguments": {"a": "b"}}},
    {"role": "function", "name": "f", "content": "5"},
]
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
    _CHAT | {"messages": _TURNS, "tools": [_TOOL], "tool_choice": "auto", "stream": True},
    _CHAT | {"tools": [_TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    _CHAT | {"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    _CHAT | {"messages": _OLDER, "functions": [_TOOL["function"]], "function_call": {"name": "f"}},
    _CHAT | {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}},
    _CHAT | {"thinking_token_budget": 5, "include_reasoning": False, "separate_reasoning": True},
    _CHAT | {"messages": _OLDER[:1], "continue_final_message": True, "min_tokens": 2},
)
COMPLETIONS: tuple[dict[str, Any], ...] = (
    _PROMPT,
    _PROMPT | {"stream": True, "echo": True},
    _PROMPT | {"prompt": ["a", "b"], "n": 2, "stop": "x", "ignore_eos": True},
    _PROMPT | {"prompt": [[5, 6], [7]], "detokenize": False, "stream": True},
    _PROMPT | {"prompt": [5, 6, 7], "logprobs": 1, "stop_token_ids": [9]},
    _PROMPT | {"logits_processors": [{"name": "forced_sequence", "args": {"token_ids": [5, 6]}}]},
)
_FLAT = {"type": "function", **_TOOL["function"]}
RESPONSES: tuple[dict[str, Any], ...] = (
    {"model": MODEL, "input": "Hello", "instructions": "Be brief.", "stream": True},
    {
        "model": MODEL,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Well."}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [_FLAT],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": _SCHEMA}},
        "reasoning": {"effort": "none"},
        "max_output_tokens": 5,
    },
)
MESSAGES: tuple[dict[str, Any], ...] = (
    {"model": MODEL, "max_tokens": 5, "messages": _CHAT["messages"], "system": "Be brief."},
    {
        "model": MODEL,
        "max_tokens": 5,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Well.", "signature": ""},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "b"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": "x"}],
            },
        ],
        "tools": [{"name": "f", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
        "stop_sequences": ["x"],
    },
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
    return [
        json.dumps(body).encode() for body in (*CHATS, *COMPLETIONS, *RESPONSES, *MESSAGES, *forms)
    ]


@cache
def form_bodies() -> Sequence[bytes]:
    """Of chats that ask for a form."""
    return [json.dumps(_CHAT | form).encode() for form in FORMS]


@cache
def requests() -> Sequence[bytes]:
    """Whole requests, as bytes."""
    posts = [("/v1/chat/completions", body) for body in (*CHATS, *(_CHAT | f for f in FORMS))]
    posts += [("/v1/completions", body) for body in COMPLETIONS]
    posts += [("/v1/responses", body) for body in RESPONSES]
    posts += [("/v1/messages", body) for body in MESSAGES]
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
