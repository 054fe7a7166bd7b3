"""Anthropic's `/v1/messages`, as a dialect of chats."""

from __future__ import annotations

from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.blocks import BlockBody
from tandem_frontend.openai.dialects import Dialect, Running, nothing
from tandem_frontend.openai.messages.requests import BODY, NAMES, chat
from tandem_frontend.openai.messages.writers import MessageEvents, message_body
from tandem_frontend.openai.tokenizer import Tokenizer


def _events(tokenizer: Tokenizer, asked: Asked, running: Running) -> MessageEvents:
    return MessageEvents(asked)


def _body(tokenizer: Tokenizer, asked: Asked) -> BlockBody:
    return message_body(asked)


MESSAGES = Dialect(
    kind="message",
    operation="chat",
    requests=BODY,
    generating=chat,
    repeated=nothing,
    names=NAMES,
    events=_events,
    body=_body,
)
