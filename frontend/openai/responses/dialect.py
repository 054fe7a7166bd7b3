"""OpenAI's `/v1/responses`, of which nothing is stored."""

from __future__ import annotations

from frontend.openai.asked import Asked
from frontend.openai.blocks import BlockBody
from frontend.openai.dialects import Dialect, Running
from frontend.openai.responses.answers import repeated
from frontend.openai.responses.requests import BODY, NAMES, chat
from frontend.openai.responses.writers import ResponseEvents, response_body
from frontend.openai.tokenizer import Tokenizer


def _events(tokenizer: Tokenizer, asked: Asked, running: Running) -> ResponseEvents:
    return ResponseEvents(asked, running.hold)


def _body(tokenizer: Tokenizer, asked: Asked) -> BlockBody:
    return response_body(asked)


RESPONSES = Dialect(
    kind="response",
    operation="chat",
    requests=BODY,
    generating=chat,
    repeated=repeated,
    names=NAMES,
    events=_events,
    body=_body,
)
