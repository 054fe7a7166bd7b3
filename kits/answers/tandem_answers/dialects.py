"""The kit's dialects of chats, as its entry point names them: OpenAI's `/v1/responses`, of which
nothing is stored, and Anthropic's `/v1/messages`.
"""

from __future__ import annotations

from tandem_answers.blocks import BlockBody, counted_already
from tandem_answers.messages import answers, errors, requests, writers
from tandem_answers.responses import answers as response_answers
from tandem_answers.responses import requests as response_requests
from tandem_answers.responses import writers as response_writers
from tandem_frontend.openai.dialects import OPENAI_ERRORS, Counting, Dialect, ErrorShape, nothing

RESPONSES = Dialect(
    endpoint="responses",
    path="/v1/responses",
    summary="Answer items of a conversation, as one body or as server-sent events",
    operation="chat",
    requests=response_requests.BODY,
    generating=response_requests.chat,
    repeated=response_answers.repeated,
    names=response_requests.NAMES,
    events=lambda _, asked, running: response_writers.ResponseEvents(asked, running.hold),
    body=lambda _, asked: BlockBody(
        response_writers.ResponseAnswer(asked, counted_already, whole=True)
    ),
    answer=response_answers.Response,
    errors=OPENAI_ERRORS,
    below="Responses are not stored here; send the whole conversation as `input`",
)
MESSAGES = Dialect(
    endpoint="messages",
    path="/v1/messages",
    summary="Answer the turns of a conversation, as one body or as server-sent events",
    operation="chat",
    requests=requests.BODY,
    generating=requests.chat,
    repeated=nothing,
    names=requests.NAMES,
    events=lambda _, asked, running: writers.MessageEvents(asked),
    body=lambda _, asked: BlockBody(writers.MessageAnswer(asked, counted_already, whole=True)),
    answer=answers.WholeMessage,
    errors=ErrorShape(
        schema=answers.MessageError,
        status=errors.status,
        body=errors.body,
        request_id_header=b"request-id",
    ),
    counting=Counting(
        endpoint="count_tokens",
        path="/v1/messages/count_tokens",
        summary="How many tokens the prompt of such a request has",
        requests=requests.COUNT_BODY,
        prompt=requests.prompt,
        answer=answers.TokenCount,
    ),
)
DIALECTS = (RESPONSES, MESSAGES)
