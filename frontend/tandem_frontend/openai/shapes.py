"""The answers of chats and of plain completions, as far as they differ on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.v1 import common_pb2
from tandem_frontend.openai import answers, logprobs
from tandem_frontend.openai.answers import ChatLogprobs, CompletionLogprobs
from tandem_frontend.openai.tokenizer import ModelTokenizer

Logprobs = ChatLogprobs | CompletionLogprobs


@dataclass(slots=True, frozen=True, kw_only=True)
class ChunkShape:
    """The pieces of a chunk's JSON around its text, and how a collected choice is written."""

    in_messages: bool
    """Whether a choice is a message, not a text."""
    id_prefix: str
    chunk_object: str
    opening: bytes
    """What every choice begins with, before its first text; empty: nothing."""
    before_text: bytes
    after_text: bytes
    no_text: bytes
    logprobs: Callable[[ModelTokenizer, Sequence[common_pb2.TokenLogprobs], int], Logprobs]
    """From a row's entries and the number of characters of tokens before them."""
    shown: Callable[[str], dict[str, object]]
    """The fields of a collected choice that hold its text."""
    choice: Callable[..., answers.ChatChoice | answers.CompletionChoice]
    body: Callable[..., answers.ChatCompletion | answers.Completion]


CHAT = ChunkShape(
    in_messages=True,
    id_prefix="chatcmpl-",
    chunk_object="chat.completion.chunk",
    opening=b'"delta":{"role":"assistant","content":""}',
    before_text=b'"delta":{"content":',
    after_text=b"}",
    no_text=b'"delta":{}',
    logprobs=lambda tokenizer, entries, _: logprobs.for_chat(tokenizer, entries),
    shown=lambda text: {"message": answers.AssistantMessage(content=text)},
    choice=answers.ChatChoice,
    body=answers.ChatCompletion,
)
COMPLETION = ChunkShape(
    in_messages=False,
    id_prefix="cmpl-",
    chunk_object="text_completion",
    opening=b"",
    before_text=b'"text":',
    after_text=b"",
    no_text=b'"text":""',
    logprobs=logprobs.for_completion,
    shown=lambda text: {"text": text},
    choice=answers.CompletionChoice,
    body=answers.Completion,
)
