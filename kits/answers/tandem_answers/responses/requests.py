"""The bodies of `/v1/responses`, and the chats that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tandem.errors import InvalidRequestError
from tandem.sampling import MaxTokens, Temperature, TopP
from tandem_answers.foreign import OF_FLAT_TOOLS, OF_ITEMS, OF_REASONING, OF_RESPONSES, OF_TEXT
from tandem_frontend.openai.conversation import ChatMessage, TextPart
from tandem_frontend.openai.decoding import Body, needed
from tandem_frontend.openai.foreign import BUILT_IN_CALLS, BUILT_IN_TOOLS, OF_PARTS, TOOL_TYPES
from tandem_frontend.openai.formats import (
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    ResponseFormat,
    TextFormat,
)
from tandem_frontend.openai.nvext import KIND as NVEXT
from tandem_frontend.openai.nvext import KvHints, NvExt
from tandem_frontend.openai.requests import (
    ChatRequest,
    MetadataKey,
    MetadataText,
    ReasoningEffort,
    ServiceTier,
)
from tandem_frontend.openai.strangers import KnownObject
from tandem_frontend.openai.tools import (
    LONGEST_NAME,
    AllowedTool,
    AllowedTools,
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

CUSTOM_INPUT: Final = "input"
"""The one argument of the function that a custom tool is shown as."""
_CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
ItemRole: TypeAlias = Literal["user", "assistant", "system", "developer"]
ItemType: TypeAlias = Literal[
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
]


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
    """Reasoning, where an item has no `content`."""
    encrypted_content: str | None = None
    """Reasoning that only the client's other server can read."""
    call_id: CallId | None = None
    name: FunctionName | None = None
    namespace: FunctionName | None = None
    """The one that the called tool is in."""
    arguments: str | None = None
    input: str | None = None
    """What a custom tool was given."""
    output: Text | None = None


class ResponseTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A function, a custom tool, which takes one text, or a namespace of them. Which fields it has
    depends on its type.
    """

    type: Literal["function", "custom", "namespace"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    """What the text of a custom tool is like: the model is told, and not forced."""
    tools: list[ResponseTool] | None = None


class NamedTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    type: Literal["function", "custom"]
    name: FunctionName
    namespace: FunctionName | None = None


class ChosenTools(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The one tool that is called, or the tools to which calls are kept. The fields depend on the
    type.
    """

    type: Literal["function", "custom", "allowed_tools"]
    name: FunctionName | None = None
    namespace: FunctionName | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Meta(min_length=1)] | None = None


class FlatJsonSchemaFormat(
    JsonSchema, tag_field="type", tag="json_schema", forbid_unknown_fields=True, kw_only=True
):
    """JSON that a JSON Schema describes."""


class TextOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: TextFormat | JsonObjectFormat | FlatJsonSchemaFormat | None = None


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    effort: ReasoningEffort | None = None


class ResponseRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Choice | ChosenTools | None = None
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
    service_tier: ServiceTier | None = None
    nvext: NvExt | None = None
    """Hints: where the request goes, and when."""
    kv_hints: KvHints = msgspec.UNSET


_PARTS = KnownObject.of(ItemText, OF_PARTS)
BODY = Body.of(
    ResponseRequest,
    OF_RESPONSES,
    input=KnownObject.of(
        InputItem,
        OF_ITEMS,
        BUILT_IN_CALLS,
        content=_PARTS,
        summary=_PARTS,
        output=_PARTS,
    ),
    tools=KnownObject.of(
        ResponseTool,
        OF_FLAT_TOOLS,
        BUILT_IN_TOOLS,
        TOOL_TYPES,
        tools=KnownObject.of(ResponseTool, OF_FLAT_TOOLS, BUILT_IN_TOOLS, TOOL_TYPES),
    ),
    text=KnownObject.of(TextOptions, OF_TEXT),
    reasoning=KnownObject.of(ReasoningOptions, OF_REASONING),
    nvext=NVEXT,
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
        tools=None if request.tools is None else list(flattened(request.tools)),
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
        service_tier=request.service_tier,
        nvext=request.nvext,
        kv_hints=request.kv_hints,
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
            role: ItemRole = needed(item.role, f"{path}.role")
            content = _parts(item.content, f"{path}.content")
            only_thought = last is not None and last.content is None and not last.tool_calls
            if role == "assistant" and last is not None and only_thought:
                last.content = content
            else:
                messages.append(ChatMessage(role=role, content=content))
        case "reasoning":
            thought = _text(item.content) or _text(item.summary)
            messages.append(ChatMessage(role="assistant", reasoning_content=thought))
        case "function_call":
            _add_call(messages, item, path, needed(item.arguments, f"{path}.arguments"))
        case "custom_tool_call":
            text = needed(item.input, f"{path}.input")
            _add_call(messages, item, path, {CUSTOM_INPUT: text})
        case "function_call_output" | "custom_tool_call_output":
            id = needed(item.call_id, f"{path}.call_id")
            output = _parts(item.output, f"{path}.output")
            messages.append(ChatMessage(role="tool", tool_call_id=id, content=output))


def _add_call(
    messages: list[ChatMessage], item: InputItem, path: str, arguments: str | dict[str, Any]
) -> None:
    name = joined_name(item.namespace, needed(item.name, f"{path}.name"))
    function = CalledFunction(name=name, arguments=arguments)
    call = MadeCall(id=needed(item.call_id, f"{path}.call_id"), function=function)
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant"))
    last = messages[-1]
    last.tool_calls = [*(last.tool_calls or ()), call]


def _parts(content: Text | None, path: str) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=part.text) for part in needed(content, path)]


def _text(content: Text | None) -> str:
    parts = content or ""
    return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)


def flattened(tools: Sequence[ResponseTool]) -> Iterator[Tool]:
    """The functions that the model is shown. Raises InvalidRequestError."""
    for place, tool in enumerate(tools):
        if tool.type != "namespace":
            yield _tool(tool, None)
            continue
        for inner, each in enumerate(tool.tools or ()):
            if each.type == "namespace":
                path = f"tools[{place}].tools[{inner}].type"
                raise InvalidRequestError("A namespace has no other inside", param=path)
            yield _tool(each, tool if inner == 0 else None, tool.name)


def _tool(tool: ResponseTool, described: ResponseTool | None, namespace: str | None = None) -> Tool:
    """`described`: the namespace, whose description comes before that of its first tool."""
    texts = [each.description for each in (described, tool) if each and each.description]
    parameters = tool.parameters
    if tool.type == "custom":
        parameters = _CUSTOM_PARAMETERS
        if wanted := (tool.format or {}).get("definition"):
            texts.append(f"The {CUSTOM_INPUT} follows this grammar:\n{wanted}")
    function = FunctionDefinition(
        name=joined_name(namespace, tool.name),
        description="\n\n".join(texts) or None,
        parameters=parameters,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def joined_name(namespace: str | None, name: str) -> str:
    """What the model knows a tool of a namespace by. Raises InvalidRequestError."""
    joined = f"{namespace.removesuffix('__')}__{name}" if namespace else name
    if len(joined) > LONGEST_NAME:
        raise InvalidRequestError(
            f"The name of a tool, with its namespace, has at most {LONGEST_NAME} characters",
            param="tools",
        )
    return joined


def _choice(choice: Choice | ChosenTools | None) -> Choice | ToolChoice | None:
    if not isinstance(choice, ChosenTools):
        return choice
    if choice.type == "allowed_tools":
        allowed = AllowedTools(
            mode=needed(choice.mode, "tool_choice.mode"),
            tools=[
                AllowedTool(type="function", function=_named(each.namespace, each.name))
                for each in needed(choice.tools, "tool_choice.tools")
            ],
        )
        return ToolChoice(type="allowed_tools", allowed_tools=allowed)
    name = needed(choice.name, "tool_choice.name")
    return ToolChoice(type="function", function=_named(choice.namespace, name))


def _named(namespace: str | None, name: str) -> FunctionChoice:
    return FunctionChoice(name=joined_name(namespace, name))


def _format(text: TextOptions | None) -> ResponseFormat | None:
    match text.format if text else None:
        case FlatJsonSchemaFormat() as flat:
            fields = msgspec.structs.asdict(flat)
            return JsonSchemaFormat(json_schema=JsonSchema(**fields))
        case format:
            return format
