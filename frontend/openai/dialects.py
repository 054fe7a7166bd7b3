"""The two dialects of generation, chat and plain completions, as far as they differ on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from frontend.openai import answers, logprobs
from frontend.openai.answers import ChatLogprobs, CompletionLogprobs
from frontend.openai.decoding import decode
from frontend.openai.requests import ChatRequest, CompletionRequest
from frontend.openai.tokenizer import Tokenizer
from tandem.v1 import common_pb2

Logprobs = ChatLogprobs | CompletionLogprobs


@dataclass(slots=True, frozen=True, kw_only=True)
class Dialect:
    """How a request is read, the pieces of a chunk's JSON around its text, and how a collected
    choice is written.
    """

    decode: Callable[[bytes], ChatRequest | CompletionRequest]
    """A body as its request. Raises RequestError."""
    operation: str
    """OpenTelemetry's name for it."""
    id_prefix: str
    chunk_object: str
    opening: bytes
    """What every choice begins with, before its first text; empty: nothing."""
    before_text: bytes
    after_text: bytes
    no_text: bytes
    logprobs: Callable[[Tokenizer, Iterable[common_pb2.TokenLogprobs], int], Logprobs]
    """From a row's entries and the number of characters of tokens before them."""
    join_logprobs: Callable[[list[Logprobs]], Logprobs]
    choice: Callable[..., answers.ChatChoice | answers.CompletionChoice]
    body: Callable[..., answers.ChatCompletion | answers.Completion]


def _chat_choice(text: str, **fields: object) -> answers.ChatChoice:
    return answers.ChatChoice(message=answers.AssistantMessage(content=text), **fields)  # type: ignore[arg-type]


def _chat_logprobs(
    tokenizer: Tokenizer, entries: Iterable[common_pb2.TokenLogprobs], offset: int
) -> ChatLogprobs:
    return logprobs.for_chat(tokenizer, entries)


def _join_chat(parts: list[Logprobs]) -> ChatLogprobs:
    content = [token for part in parts if isinstance(part, ChatLogprobs) for token in part.content]
    return ChatLogprobs(content=content)


def _join_completion(parts: list[Logprobs]) -> CompletionLogprobs:
    joined = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for part in parts:
        if isinstance(part, CompletionLogprobs):
            joined.tokens += part.tokens
            joined.token_logprobs += part.token_logprobs
            joined.top_logprobs += part.top_logprobs
            joined.text_offset += part.text_offset
    return joined


CHAT = Dialect(
    decode=partial(decode, msgspec.json.Decoder(ChatRequest)),
    operation="chat",
    id_prefix="chatcmpl-",
    chunk_object="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":""}',
    before_text=b'"delta":{"content":',
    after_text=b"}",
    no_text=b'"delta":{}',
    logprobs=_chat_logprobs,
    join_logprobs=_join_chat,
    choice=_chat_choice,
    body=answers.ChatCompletion,
)
COMPLETION = Dialect(
    decode=partial(decode, msgspec.json.Decoder(CompletionRequest)),
    operation="text_completion",
    id_prefix="cmpl-",
    chunk_object="text_completion",
    opening=b"",
    before_text=b'"text":',
    after_text=b"",
    no_text=b'"text":""',
    logprobs=logprobs.for_completion,
    join_logprobs=_join_completion,
    choice=answers.CompletionChoice,
    body=answers.Completion,
)
