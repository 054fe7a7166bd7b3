"""The two dialects of generation, chat and plain completions, as far as they differ on the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from frontend.openai import answers, logprobs
from frontend.openai.answers import ChatLogprobs, CompletionLogprobs
from frontend.openai.decoding import Body
from frontend.openai.foreign import OF_CHATS, OF_COMPLETIONS
from frontend.openai.requests import (
    AnyChatRequest,
    AnyCompletionRequest,
    ChatRequest,
    CompletionRequest,
)
from frontend.openai.tokenizer import Tokenizer
from tandem.v1 import common_pb2

Logprobs = ChatLogprobs | CompletionLogprobs


@dataclass(slots=True, frozen=True, kw_only=True)
class Dialect:
    """How a request is read, the pieces of a chunk's JSON around its text, and how a collected
    choice is written.
    """

    kind: Literal["chat", "completion"]
    requests: Body[ChatRequest] | Body[CompletionRequest]
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
    choice: Callable[..., answers.ChatChoice | answers.CompletionChoice]
    body: Callable[..., answers.ChatCompletion | answers.Completion]


def _chat_choice(text: str, **fields: object) -> answers.ChatChoice:
    return answers.ChatChoice(message=answers.AssistantMessage(content=text), **fields)  # type: ignore[arg-type]


def _chat_logprobs(
    tokenizer: Tokenizer, entries: Iterable[common_pb2.TokenLogprobs], offset: int
) -> ChatLogprobs:
    return logprobs.for_chat(tokenizer, entries)


CHAT = Dialect(
    kind="chat",
    requests=Body.of(ChatRequest, AnyChatRequest, OF_CHATS),
    operation="chat",
    id_prefix="chatcmpl-",
    chunk_object="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":""}',
    before_text=b'"delta":{"content":',
    after_text=b"}",
    no_text=b'"delta":{}',
    logprobs=_chat_logprobs,
    choice=_chat_choice,
    body=answers.ChatCompletion,
)
COMPLETION = Dialect(
    kind="completion",
    requests=Body.of(CompletionRequest, AnyCompletionRequest, OF_COMPLETIONS),
    operation="text_completion",
    id_prefix="cmpl-",
    chunk_object="text_completion",
    opening=b"",
    before_text=b'"text":',
    after_text=b"",
    no_text=b'"text":""',
    logprobs=logprobs.for_completion,
    choice=answers.CompletionChoice,
    body=answers.Completion,
)
