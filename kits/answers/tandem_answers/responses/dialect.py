"""OpenAI's `/v1/responses`, of which nothing is stored."""

from __future__ import annotations

from tandem_answers.blocks import BlockBody
from tandem_answers.responses.answers import Response, repeated
from tandem_answers.responses.requests import BODY, NAMES, chat
from tandem_answers.responses.writers import ResponseEvents, response_body
from tandem_frontend.openai.asked import Asked
from tandem_frontend.openai.dialects import OPENAI_ERRORS, Dialect, Running
from tandem_frontend.openai.tokenizer import Tokenizer


def _events(tokenizer: Tokenizer, asked: Asked, running: Running) -> ResponseEvents:
    return ResponseEvents(asked, running.hold)


def _body(tokenizer: Tokenizer, asked: Asked) -> BlockBody:
    return response_body(asked)


RESPONSES = Dialect(
    endpoint="responses",
    path="/v1/responses",
    summary="Answer items of a conversation, as one body or as server-sent events",
    operation="chat",
    requests=BODY,
    generating=chat,
    repeated=repeated,
    names=NAMES,
    events=_events,
    body=_body,
    answer=Response,
    errors=OPENAI_ERRORS,
    below="Responses are not stored here; send the whole conversation as `input`",
)
