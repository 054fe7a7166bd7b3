"""What clients get back: the shapes of bodies and of stream chunks, as types for the API's
description.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tandem.endings import FinishReason
from tandem_frontend.prices import CostDetails

AnsweredTier: TypeAlias = Literal["default", "flex", "priority"]
ChatFinishReason: TypeAlias = FinishReason | Literal["tool_calls", "function_call"]


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    reasoning_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """`completion_tokens` counts what was generated, shown or withheld by a hook."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET
    """Given where the model's reasoning is told from its answer."""
    cost: float | msgspec.UnsetType = msgspec.UNSET
    """In the currency of the deployment's prices, where the model has one."""
    cost_details: CostDetails | msgspec.UnsetType = msgspec.UNSET


class PhaseReport(msgspec.Struct, kw_only=True):
    choice: int
    phase: Literal["prefill", "decode"]
    worker: str
    request_id: int
    emitted: int
    suppressed: int
    terminated: int
    hook_seconds: float
    phase_seconds: float
    kv_bytes: int
    kv_seconds: float
    kv_transport: str
    first_seconds: float
    """From the start to the engine's first output."""
    engine_queue_seconds: float
    """The sequence waited in the engine until others were computed; 0: the engine cannot say."""
    classifier_seconds: float
    """Classifiers were waited for."""


class Timeline(msgspec.Struct, kw_only=True):
    """Where the time of a choice went, in this order, each second counted once: the parts that
    tandem/timeline.py names.
    """

    choice: int
    read_seconds: float
    queue_seconds: float
    queue_cause: str
    """Why no worker took the choice at once; empty: one did."""
    prefill_seconds: float
    kv_seconds: float
    decode_seconds: float
    hooks_seconds: float
    client_seconds: float
    other_seconds: float


class Report(msgspec.Struct, kw_only=True):
    """What was done for a request; only where asked for and allowed."""

    trace_id: str
    ttft_seconds: float | None
    request_seconds: float
    timeline: list[Timeline]
    phases: list[PhaseReport]


class TopLogprob(msgspec.Struct, kw_only=True, gc=False):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True, gc=False):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    content: list[TokenLogprob]


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists. `text_offset` counts characters of the tokens' own text."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """`null` for a prompt's first token: nothing stands before it."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class FunctionCall(msgspec.Struct, kw_only=True):
    name: str
    arguments: str
    """JSON, as the model wrote it; cut off where the answer was."""


class ToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class PromptLogprob(msgspec.Struct, kw_only=True, gc=False):
    logprob: float
    rank: int | None
    """1 is the likeliest; `null`: behind the alternatives that were asked for."""
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of a prompt, by token id, itself and its alternatives; `null` for the first."""


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    """None: the model only called tools."""
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """`reasoning_content` by the name that other servers give it."""
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    function_call: FunctionCall | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The output's; only where asked for."""
    external_scores: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What each classifier answered, by its name; only where asked for and allowed."""


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET
    """Only where asked for."""
    finish_reason: FinishReason
    stop_reason: str | int | None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """The output's; only where asked for."""
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Only where asked for."""
    external_scores: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType | None = msgspec.UNSET
    """Only where asked for."""
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    """Only where asked for."""
    service_tier: AnsweredTier | msgspec.UnsetType = msgspec.UNSET
    """The class of the queue that the request was really in; where its client named one."""
    tandem: Report | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    tandem: Report | msgspec.UnsetType = msgspec.UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tandem"
    max_model_len: int
    root: str | msgspec.UnsetType = msgspec.UNSET
    """What a name for a LoRA adapter stands for: model:adapter."""
    parent: str | msgspec.UnsetType = msgspec.UNSET
    """The model of that adapter."""
    simulated: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """An engine that serves it is simulated: its answers are random words."""


class ModelList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(msgspec.Struct, kw_only=True):
    tokens: list[int]
    count: int
    max_model_len: int


class Text(msgspec.Struct, kw_only=True):
    prompt: str


class Status(msgspec.Struct, kw_only=True):
    status: Literal["ok"] = "ok"


class Version(msgspec.Struct, kw_only=True):
    version: str


class Moderation(msgspec.Struct, kw_only=True):
    """The verdict of all classifiers on one input."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class ModerationAnswer(msgspec.Struct, kw_only=True):
    """The verdicts on all inputs, in the order of the inputs."""

    id: str
    model: str
    """Names of the classifiers, joined by `+`."""
    results: list[Moderation]


class ErrorDetail(msgspec.Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, kw_only=True):
    """Every failure, as a body or, once a stream has begun, as its last event."""

    error: ErrorDetail
