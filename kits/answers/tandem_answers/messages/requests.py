"""The bodies of `/v1/messages`, and the chats that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tandem.errors import InvalidRequestError
from tandem.sampling import MAX_INT32, MaxTokens, Temperature, TopP
from tandem_answers.foreign import OF_BLOCKS, OF_CLIENT_TOOLS, OF_COUNTS, OF_TURNS
from tandem_frontend.openai.conversation import ChatMessage
from tandem_frontend.openai.decoding import Body, needed
from tandem_frontend.openai.foreign import BUILT_IN_TOOLS, TOOL_TYPES
from tandem_frontend.openai.formats import JsonSchema, JsonSchemaFormat
from tandem_frontend.openai.nvext import KIND as NVEXT
from tandem_frontend.openai.nvext import KvHints, NvExt
from tandem_frontend.openai.requests import (
    MAX_STOPS,
    ChatRequest,
    MetadataText,
    ReasoningEffort,
    ServiceTier,
    StopString,
)
from tandem_frontend.openai.strangers import KnownObject
from tandem_frontend.openai.tools import (
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

INVALID_JSON = "INVALID_JSON"
"""The one member of the input of a call whose arguments are no JSON object: their text."""
BlockType: TypeAlias = Literal[
    "text", "thinking", "redacted_thinking", "tool_use", "tool_result", "tool_reference"
]


class ContentBlock(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of a turn, or of a tool's result. Which fields it has depends on its type."""

    type: BlockType
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    """Comes with thinking; nobody here checks it."""
    data: str | None = None
    """Redacted thinking, which nobody here can read."""
    id: CallId | None = None
    name: FunctionName | None = None
    input: dict[str, Any] | None = None
    tool_use_id: CallId | None = None
    tool_name: FunctionName | None = None
    """A tool that a search of the client's has found; templates show all tools anyway."""
    content: str | list[ContentBlock] | None = None
    is_error: bool | None = None


class Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class ClientTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ToolUse(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    """Needed by the type `tool`."""
    disable_parallel_tool_use: bool | None = None


class ThinkingOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None
    """Tokens after which the thinking is ended: the type `enabled` needs it."""
    display: Literal["summarized", "omitted"] | None = None
    """`omitted`: the answer comes without it. It is never summarised."""


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


class MessageMetadata(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    user_id: MetadataText | None = None
    """For the deployment's classifiers; nothing of it is stored."""


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a prompt is made from."""

    model: str
    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: str | list[ContentBlock] | None = None
    tools: list[ClientTool] | None = None
    tool_choice: ToolUse | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None


class MessageRequest(CountRequest, forbid_unknown_fields=True, kw_only=True):
    max_tokens: MaxTokens
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None = None
    metadata: MessageMetadata | None = None
    stream: bool | None = None
    service_tier: ServiceTier | None = None
    nvext: NvExt | None = None
    """Hints: where the request goes, and when."""
    kv_hints: KvHints = msgspec.UNSET


_BLOCKS = KnownObject.of(ContentBlock, OF_BLOCKS, content=KnownObject.of(ContentBlock, OF_BLOCKS))
_INNER = {
    "messages": KnownObject.of(Turn, OF_BLOCKS, content=_BLOCKS),
    "system": _BLOCKS,
    "tools": KnownObject.of(ClientTool, OF_CLIENT_TOOLS, BUILT_IN_TOOLS, TOOL_TYPES),
}
BODY = Body.of(MessageRequest, OF_TURNS, nvext=NVEXT, **_INNER)
COUNT_BODY = Body.of(CountRequest, OF_COUNTS, **_INNER)
NAMES = {
    "messages": "messages",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    "chat_template_kwargs": "thinking",
    "continue_final_message": "messages",
}
"""What the fields of a chat are called here. Places of messages are others: none is told."""


def chat(request: MessageRequest) -> ChatRequest:
    """What a request asks for. Raises InvalidRequestError for blocks that do not fit."""
    asked = prompt(request)
    user = request.metadata.user_id if request.metadata else None
    asked.max_tokens = request.max_tokens
    asked.stop = list(request.stop_sequences) if request.stop_sequences else None
    asked.temperature = request.temperature
    asked.top_p = request.top_p
    asked.top_k = request.top_k
    asked.metadata = None if user is None else {"user_id": user}
    asked.stream = request.stream
    asked.user = user
    asked.service_tier = request.service_tier
    asked.nvext = request.nvext
    asked.kv_hints = request.kv_hints
    return asked


def prompt(request: CountRequest) -> ChatRequest:
    messages = list(_messages(request))
    last = messages[-1]
    choice = request.tool_choice
    single = choice is not None and choice.disable_parallel_tool_use is True
    asked = ChatRequest(
        model=request.model,
        messages=messages,
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        tool_choice=_choice(choice),
        parallel_tool_calls=False if single else None,
        continue_final_message=True if last.role == "assistant" and last.content else None,
    )
    _think(request, asked)
    return asked


def _think(request: CountRequest, asked: ChatRequest) -> None:
    config = request.output_config or OutputConfig()
    asked.reasoning_effort = config.effort
    if config.format is not None:
        schema = JsonSchema(schema=config.format.schema, name="output")
        asked.response_format = JsonSchemaFormat(json_schema=schema)
    if (thinking := request.thinking) is None:
        return
    asked.include_reasoning = thinking.display != "omitted"
    match thinking.type:
        case "enabled":
            asked.thinking_token_budget = needed(thinking.budget_tokens, "thinking.budget_tokens")
            asked.chat_template_kwargs = {"enable_thinking": True, "thinking": True}
        case "disabled":
            asked.reasoning_effort = "none"


def _messages(request: CountRequest) -> Iterator[ChatMessage]:
    if request.system:
        yield ChatMessage(role="system", content=_text(request.system, "system"))
    for place, turn in enumerate(request.messages):
        path = f"messages[{place}].content"
        if isinstance(turn.content, str):
            yield ChatMessage(role=turn.role, content=turn.content)
        elif turn.role == "assistant":
            yield _said(turn.content, path)
        else:
            yield from _given(turn.role, turn.content, path)


def _said(blocks: Sequence[ContentBlock], path: str) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for place, block in enumerate(blocks):
        at = f"{path}[{place}]"
        match block.type:
            case "text":
                texts.append(needed(block.text, f"{at}.text"))
            case "thinking":
                thoughts.append(needed(block.thinking, f"{at}.thinking"))
            case "tool_use":
                calls.append(_call(block, at))
            case "tool_result" | "tool_reference":
                raise InvalidRequestError("The user has a tool's results", param=at)
    return ChatMessage(
        role="assistant",
        content="\n".join(texts) if texts else None,
        reasoning_content="\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _given(
    role: Literal["user", "system"], blocks: Sequence[ContentBlock], path: str
) -> Iterator[ChatMessage]:
    """The results of tools, each a message, and texts between them."""
    texts: list[str] = []
    for place, block in enumerate(blocks):
        at = f"{path}[{place}]"
        match block.type:
            case "text":
                texts.append(needed(block.text, f"{at}.text"))
            case "tool_result":
                if texts:
                    yield ChatMessage(role=role, content="\n".join(texts))
                    texts = []
                yield _result(block, at)
            case "tool_reference":
                raise InvalidRequestError("A tool's result alone has `tool_reference`", param=at)
            case type:
                raise InvalidRequestError(f"The assistant alone has `{type}`", param=at)
    if texts or not blocks:
        yield ChatMessage(role=role, content="\n".join(texts))


def _result(block: ContentBlock, path: str) -> ChatMessage:
    """Templates have no place for `is_error`: the text says it. Found tools are named."""
    content = block.content or ""
    if not isinstance(content, str):
        content = [_as_text(each, f"{path}.content[{at}]") for at, each in enumerate(content)]
    text = _text(content, f"{path}.content")
    return ChatMessage(
        role="tool",
        tool_call_id=needed(block.tool_use_id, f"{path}.tool_use_id"),
        content=f"Error: {text}" if block.is_error else text,
    )


def _as_text(block: ContentBlock, path: str) -> ContentBlock:
    if block.type != "tool_reference":
        return block
    return ContentBlock(type="text", text=needed(block.tool_name, f"{path}.tool_name"))


def _text(content: str | Sequence[ContentBlock], path: str) -> str:
    if isinstance(content, str):
        return content
    for place, block in enumerate(content):
        if block.type != "text":
            raise InvalidRequestError("Only texts stand here", param=f"{path}[{place}].type")
    return "\n".join(
        needed(block.text, f"{path}[{place}].text") for place, block in enumerate(content)
    )


def _call(block: ContentBlock, path: str) -> MadeCall:
    """Arguments that were no JSON object go back to the model as it wrote them."""
    given = needed(block.input, f"{path}.input")
    written = given.get(INVALID_JSON)
    arguments = written if len(given) == 1 and isinstance(written, str) else given
    name = needed(block.name, f"{path}.name")
    function = CalledFunction(name=name, arguments=arguments)
    return MadeCall(id=needed(block.id, f"{path}.id"), function=function)


def _tool(tool: ClientTool) -> Tool:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _choice(choice: ToolUse | None) -> Choice | ToolChoice | None:
    match choice:
        case ToolUse(type="any"):
            return "required"
        case ToolUse(type="tool"):
            name = needed(choice.name, "tool_choice.name")
            return ToolChoice(type="function", function=FunctionChoice(name=name))
        case ToolUse(type="none"):
            return "none"
        case ToolUse():
            return "auto"
    return None
