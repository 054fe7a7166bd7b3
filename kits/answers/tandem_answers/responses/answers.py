"""What clients of `/v1/responses` get back, as types for the API's description."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from tandem_answers.responses.requests import (
    ChosenTools,
    ReasoningOptions,
    ResponseRequest,
    ResponseTool,
    TextOptions,
)
from tandem_frontend.openai.answers import AnsweredTier
from tandem_frontend.openai.formats import TextFormat
from tandem_frontend.openai.tools import Choice

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, kw_only=True):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputMessage(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class OutputReasoning(msgspec.Struct, tag_field="type", tag="reasoning", kw_only=True):
    id: str
    status: ItemStatus
    summary: list[Any] = []
    """None are made."""
    content: list[ReasoningText]


class _Call(msgspec.Struct, kw_only=True):
    id: str
    call_id: str
    name: str
    namespace: str | msgspec.UnsetType = msgspec.UNSET
    """The one that the tool is in, if any."""
    status: ItemStatus


class OutputCall(_Call, tag_field="type", tag="function_call", kw_only=True):
    arguments: str
    """JSON, as the model wrote it; cut off where the answer was."""


class OutputCustomCall(_Call, tag_field="type", tag="custom_tool_call", kw_only=True):
    input: str
    """The text that the custom tool is given."""


OutputItem: TypeAlias = OutputMessage | OutputReasoning | OutputCall | OutputCustomCall


class InputTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    cost: float | msgspec.UnsetType = msgspec.UNSET
    """As in the usage of a chat."""


class IncompleteDetails(msgspec.Struct, kw_only=True):
    reason: Literal["max_output_tokens", "content_filter"]
    stop_reason: str | msgspec.UnsetType | None = msgspec.UNSET
    """The hook's reason or the classifier's name, as in the choice of a chat."""


class ResponseError(msgspec.Struct, kw_only=True):
    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class Repeated(msgspec.Struct, kw_only=True):
    """What an answer says again of its request, with the defaults of what was left out."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: ReasoningOptions
    temperature: float
    text: TextOptions
    tool_choice: Choice | ChosenTools
    tools: list[ResponseTool]
    top_p: float
    user: str | None


class Response(Repeated, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    """None: the answer is not complete yet, or failed."""
    background: Literal[False] = False
    previous_response_id: None = None
    service_tier: AnsweredTier
    """The class of the queue that the request was really in."""
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"


def repeated(request: ResponseRequest) -> bytes:
    """As the JSON of a `Repeated`."""
    said = Repeated(
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        reasoning=request.reasoning or ReasoningOptions(),
        temperature=1.0 if request.temperature is None else request.temperature,
        text=TextOptions(format=(request.text and request.text.format) or TextFormat()),
        tool_choice=request.tool_choice or "auto",
        tools=request.tools or [],
        top_p=1.0 if request.top_p is None else request.top_p,
        user=request.user,
    )
    return msgspec.json.encode(said)
