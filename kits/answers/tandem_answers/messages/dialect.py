"""Anthropic's `/v1/messages`, as a dialect of chats."""

from __future__ import annotations

from tandem_answers.blocks import BlockBody
from tandem_answers.messages import errors
from tandem_answers.messages.answers import MessageError, TokenCount, WholeMessage
from tandem_answers.messages.requests import BODY, COUNT_BODY, NAMES, chat, prompt
from tandem_answers.messages.writers import MessageEvents, message_body
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.dialects import Counting, Dialect, ErrorShape, Running, nothing
from tandem_frontend.openai.tokenizer import Tokenizer


def _events(tokenizer: Tokenizer, asked: Asked, running: Running) -> MessageEvents:
    return MessageEvents(asked)


def _body(tokenizer: Tokenizer, asked: Asked) -> BlockBody:
    return message_body(asked)


MESSAGES = Dialect(
    endpoint="messages",
    path="/v1/messages",
    summary="Answer the turns of a conversation, as one body or as server-sent events",
    operation="chat",
    requests=BODY,
    generating=chat,
    repeated=nothing,
    names=NAMES,
    events=_events,
    body=_body,
    answer=WholeMessage,
    errors=ErrorShape(
        schema=MessageError,
        status=errors.status,
        body=errors.body,
        request_id_header=b"request-id",
    ),
    counting=Counting(
        endpoint="count_tokens",
        path="/v1/messages/count_tokens",
        summary="How many tokens the prompt of such a request has",
        requests=COUNT_BODY,
        prompt=prompt,
        answer=TokenCount,
    ),
)
