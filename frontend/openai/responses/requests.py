"""The bodies of `/v1/responses`, and the chats that they stand for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from frontend.openai.conversation import ChatMessage, TextPart
from frontend.openai.decoding import Body
from frontend.openai.foreign import OF_FLAT_TOOLS, OF_ITEMS, OF_PARTS, OF_RESPONSES
from frontend.openai.formats import (
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    ResponseFormat,
    TextFormat,
)
from frontend.openai.requests import (
    ChatRequest,
    MetadataKey,
    MetadataText,
    ReasoningEffort,
)
from frontend.openai.strangers import Kind
from frontend.openai.tools import (
    CalledFunction,
    CallId,
    Choice,
    FunctionChoice,
    FunctionDefinition,
    FunctionName,
    MadeCall,
    Tool,
    ToolChoice,
)
from tandem.errors import InvalidRequestError
from tandem.sampling import MaxTokens, Temperature, TopP

T = TypeVar("T")
ItemRole: TypeAlias = Literal["user", "assistant", "system", "developer"]
ItemType: TypeAlias = Literal["message", "function_call", "function_call_output", "reasoning"]


class ItemText(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a message, of a tool's output, or of what the model thought."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str
    annotations: list[Any] | None = None
    """Answers have an empty one: it may come back with them."""
    logprobs: list[Any] | None = None


Text: TypeAlias = str | list[ItemText]


class InputItem(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What was said, called, found or thought so far. Which fields it has depends on its type."""

    type: ItemType | None = None
    """A message, where it is not said."""
    id: str | None = None
    status: str | None = None
    role: ItemRole | None = None
    content: Text | None = None
    """What a message says, or what was thought."""
    summary: list[ItemText] | None = None
    """What was thought, where nothing else tells it."""
    encrypted_content: str | None = None
    """What was thought, where nobody here can read it."""
    call_id: CallId | None = None
    name: FunctionName | None = None
    arguments: str | None = None
    output: Text | None = None


class FunctionTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """This tool, and no other, is called."""

    type: Literal["function"]
    name: FunctionName


class FlatJsonSchemaFormat(
    JsonSchema, tag_field="type", tag="json_schema", forbid_unknown_fields=True, kw_only=True
):
    """JSON that a JSON Schema describes."""


class TextOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: TextFormat | JsonObjectFormat | FlatJsonSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = None
    """None are made: the reasoning itself is in the answer."""
    generate_summary: Literal["auto"] | None = None
    """The older name of `summary`."""


class ResponseRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Choice | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    metadata: Annotated[dict[MetadataKey, MetadataText], Meta(max_length=16)] | None = None
    """For the deployment's classifiers; nothing of it is stored."""
    stream: bool | None = None
    user: str | None = None
    """Requests of one user for a name of several models go to one of them."""
    prompt_cache_key: str | None = None


class _AnyItemText(ItemText, forbid_unknown_fields=False, kw_only=True):
    pass


class _AnyItem(InputItem, forbid_unknown_fields=False, kw_only=True):
    content: str | list[_AnyItemText] | None = None  # type: ignore[assignment]
    summary: list[_AnyItemText] | None = None  # type: ignore[assignment]
    output: str | list[_AnyItemText] | None = None  # type: ignore[assignment]


class _AnyFunctionTool(FunctionTool, forbid_unknown_fields=False, kw_only=True):
    pass


class _AnyResponseRequest(ResponseRequest, forbid_unknown_fields=False, kw_only=True):
    input: str | Annotated[list[_AnyItem], Meta(min_length=1)]  # type: ignore[assignment]
    tools: list[_AnyFunctionTool] | None = None  # type: ignore[assignment]


_PARTS = Kind.of(ItemText, OF_PARTS)
BODY = Body.of(
    ResponseRequest,
    _AnyResponseRequest,
    OF_RESPONSES,
    input=Kind.of(InputItem, OF_ITEMS, content=_PARTS, summary=_PARTS, output=_PARTS),
    tools=Kind.of(FunctionTool, OF_FLAT_TOOLS),
)
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""What the fields of a chat are called here."""


def chat(request: ResponseRequest) -> ChatRequest:
    """What a request asks for. Raises InvalidRequestError for items that lack something."""
    return ChatRequest(
        model=request.model,
        messages=_messages(request),
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        tool_choice=_choice(request.tool_choice),
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_format(request.text),
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        max_completion_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        metadata=dict(request.metadata) if request.metadata else None,
        stream=request.stream,
        user=request.user,
        prompt_cache_key=request.prompt_cache_key,
    )


def _messages(request: ResponseRequest) -> list[ChatMessage]:
    messages: list[ChatMessage] = []
    if request.instructions:
        messages.append(ChatMessage(role="system", content=request.instructions))
    if isinstance(request.input, str):
        return [*messages, ChatMessage(role="user", content=request.input)]
    for place, item in enumerate(request.input):
        _add(messages, item, f"input[{place}]")
    return messages


def _add(messages: list[ChatMessage], item: InputItem, path: str) -> None:
    """Reasoning, a message and calls that follow each other are one message of the assistant."""
    last = messages[-1] if messages and messages[-1].role == "assistant" else None
    match item.type:
        case "message" | None:
            role: ItemRole = _needed(item.role, f"{path}.role")
            content = _parts(item.content, f"{path}.content")
            if role == "assistant" and last is not None and _only_thought(last):
                last.content = content
            else:
                messages.append(ChatMessage(role=role, content=content))
        case "reasoning":
            thought = _text(item.content) or _text(item.summary)
            messages.append(ChatMessage(role="assistant", reasoning_content=thought))
        case "function_call":
            call = MadeCall(
                id=_needed(item.call_id, f"{path}.call_id"),
                function=CalledFunction(
                    name=_needed(item.name, f"{path}.name"),
                    arguments=_needed(item.arguments, f"{path}.arguments"),
                ),
            )
            if last is None:
                last = ChatMessage(role="assistant")
                messages.append(last)
            last.tool_calls = [*(last.tool_calls or ()), call]
        case "function_call_output":
            id = _needed(item.call_id, f"{path}.call_id")
            output = _parts(item.output, f"{path}.output")
            messages.append(ChatMessage(role="tool", tool_call_id=id, content=output))


def _only_thought(message: ChatMessage) -> bool:
    return message.content is None and not message.tool_calls


def _needed(value: T | None, path: str) -> T:
    if value is None:
        raise _missing(path)
    return value


def _missing(path: str) -> InvalidRequestError:
    return InvalidRequestError(f"`{path}` is required", param=path)


def _parts(content: Text | None, path: str) -> str | list[TextPart]:
    if content is None:
        raise _missing(path)
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=part.text) for part in content]


def _text(content: Text | None) -> str:
    parts = content or ""
    return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


def _tool(tool: FunctionTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(choice: Choice | NamedFunction | None) -> Choice | ToolChoice | None:
    if not isinstance(choice, NamedFunction):
        return choice
    return ToolChoice(type="function", function=FunctionChoice(name=choice.name))


def _format(text: TextOptions | None) -> ResponseFormat | None:
    match text.format if text else None:
        case FlatJsonSchemaFormat() as flat:
            fields = msgspec.structs.asdict(flat)
            return JsonSchemaFormat(json_schema=JsonSchema(**fields))
        case format:
            return format
