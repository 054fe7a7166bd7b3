"""What clients of `/v1/messages` get back, as types for the API's description."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
ErrorType: TypeAlias = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
]


class TextBlock(msgspec.Struct, tag_field="type", tag="text", kw_only=True):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking", kw_only=True):
    thinking: str
    signature: str = ""
    """Nothing is signed."""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use", kw_only=True):
    id: str
    name: str
    input: msgspec.Raw
    """A JSON object; its one member is `INVALID_JSON` where the model wrote no object."""


AnswerBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, kw_only=True):
    """`input_tokens` are those that were not read from a cache."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard", "priority"] | msgspec.UnsetType = msgspec.UNSET
    """The class of the queue that the request was really in; Anthropic names none below
    `standard`. The last usage of a stream leaves it out.
    """
    cost: float | msgspec.UnsetType = msgspec.UNSET
    """As in the usage of a chat."""


class RefusalDetails(msgspec.Struct, tag_field="type", tag="refusal", kw_only=True):
    """Why an answer was withheld."""

    category: None = None
    """Policies here are the operator's own, and have no category of Anthropic's."""
    explanation: str | None
    """A hook's reason, or the name of the classifier that blocked."""


class WholeMessage(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    """None: the answer goes on."""
    stop_sequence: str | None
    stop_details: RefusalDetails | None
    usage: MessageUsage


class TokenCount(msgspec.Struct):
    input_tokens: int


class MessageErrorDetail(msgspec.Struct, kw_only=True):
    type: ErrorType
    message: str


class MessageError(msgspec.Struct, kw_only=True):
    """Every failure, as a body or, once a stream has begun, as its last event."""

    type: Literal["error"] = "error"
    error: MessageErrorDetail
    request_id: str
