"""OpenAI's `/v1/responses`, of which nothing is stored."""

from __future__ import annotations

from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.blocks import BlockBody
from tandem_frontend.openai.dialects import Dialect, Running
from tandem_frontend.openai.responses.answers import repeated
from tandem_frontend.openai.responses.requests import BODY, NAMES, chat
from tandem_frontend.openai.responses.writers import ResponseEvents, response_body
from tandem_frontend.openai.tokenizer import Tokenizer


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
