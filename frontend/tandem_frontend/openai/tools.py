"""Tools as clients declare and choose them, and what a request asks of its answer because of them.

OpenAI's older `functions` and `function_call` say the same of one call at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Meta

from tandem.errors import InvalidRequestError

LONGEST_NAME = 128
FunctionName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_.:/-]{{1,{LONGEST_NAME}}}$")]
"""Characters that mean nothing in any family's way to write a call."""
CallId = Annotated[str, Meta(min_length=1, max_length=256)]
Choice = Literal["none", "auto", "required"]


class FunctionDefinition(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema; none: any JSON object, mostly an empty one."""
    strict: bool | None = None
    """Arguments follow `parameters` for certain, not only by the model's training."""


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: FunctionName


class AllowedTool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function"]
    function: FunctionChoice


class AllowedTools(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1)]


class ToolChoice(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Makes the model call this tool, or keeps its calls to some of the tools."""

    type: Literal["function", "allowed_tools"]
    function: FunctionChoice | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str = ""
    """Empty: there was no call; some clients write one without anything."""
    arguments: str | dict[str, Any] = ""
    """JSON, as the model wrote it, or what it stands for."""


class MadeCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A call that the assistant made."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None
    """The call's place, which clients that join a stream's deltas leave in."""


OlderChoice: TypeAlias = Literal["none", "auto"] | FunctionChoice


class ToolFields(Protocol):
    tools: list[Tool] | None
    tool_choice: Choice | ToolChoice | None
    parallel_tool_calls: bool | None
    functions: list[FunctionDefinition] | None
    function_call: OlderChoice | None


class AskedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Which tools an answer may or must call."""

    functions: Mapping[str, FunctionDefinition]
    choice: Choice = "auto"
    named: str = ""
    """The one that must be called, where the choice is `required`."""
    allowed: tuple[str, ...] = ()
    """Functions that may be called; empty: all. The model is shown the others too."""
    parallel: bool = True
    older: bool = False
    """Asked for in the older form, and so answered."""

    def shown(self) -> list[dict[str, Any]]:
        """As chat templates expect them."""
        return [
            {"type": "function", "function": _plain(function)}
            for function in self.functions.values()
        ]

    def schemas(self) -> dict[str, dict[str, Any]]:
        """The schemas of the parameters of those that may be called, by the names of the tools."""
        may = self.allowed or self.functions
        return {name: self.functions[name].parameters or {} for name in may}

    @property
    def callable(self) -> Sequence[FunctionDefinition]:
        """Functions that this answer may call."""
        if self.named:
            return [self.functions[self.named]]
        return [self.functions[name] for name in self.allowed or self.functions]


def asked_tools(request: ToolFields) -> AskedTools | None:
    """None: the model is shown none. Raises InvalidRequestError."""
    older = bool(request.functions) or request.function_call is not None
    newer = bool(request.tools) or request.tool_choice is not None
    if not (older or newer):
        return None
    if older and newer:
        raise InvalidRequestError(
            "`functions` and `function_call` are the older form of `tools` and `tool_choice`; use"
            " one of them",
            param="functions" if request.functions else "function_call",
        )
    param = "functions" if older else "tools"
    given = request.functions or [tool.function for tool in request.tools or ()]
    functions = _by_name(given, param)
    choice, named, allowed = _choice(request.function_call if older else request.tool_choice)
    field = "function_call" if older else "tool_choice"
    if not functions:
        if choice == "required":
            raise InvalidRequestError(f"`{field}` needs `{param}`", param=field)
        return None
    if not {*allowed, *([named] if named else ())} <= functions.keys():
        raise InvalidRequestError(f"`{field}` names no tool of `{param}`", param=field)
    parallel = request.parallel_tool_calls is not False and not older
    return AskedTools(
        functions=functions,
        choice=choice,
        named=named,
        allowed=allowed,
        parallel=parallel,
        older=older,
    )


def shown_tools(tools: Sequence[Tool] | None) -> AskedTools | None:
    """Tools of what is no chat, but its prompt alone. Raises InvalidRequestError."""
    functions = _by_name([tool.function for tool in tools or ()], "tools")
    return AskedTools(functions=functions) if functions else None


def _by_name(given: Sequence[FunctionDefinition], param: str) -> dict[str, FunctionDefinition]:
    functions = {function.name: function for function in given}
    if len(functions) < len(given):
        raise InvalidRequestError(f"Two of `{param}` have the same name", param=param)
    return functions


def _choice(
    given: Choice | ToolChoice | OlderChoice | None,
) -> tuple[Choice, str, tuple[str, ...]]:
    """Whether the model calls a tool, the one that it must call, and the ones that it may call."""
    match given:
        case (
            ToolChoice(type="function", function=FunctionChoice(name=name))
            | FunctionChoice(name=name)
        ):
            return "required", name, ()
        case ToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=mode, tools=tools)):
            return mode, "", tuple(dict.fromkeys(each.function.name for each in tools))
        case ToolChoice(type=type):
            lacking = "function" if type == "function" else "allowed_tools"
            param = f"tool_choice.{lacking}"
            raise InvalidRequestError(f"`{param}` is required", param=param)
        case None:
            return "auto", "", ()
    return given, "", ()


def _plain(function: FunctionDefinition) -> dict[str, Any]:
    """Without what the client left out, but for parameters, which templates take for granted."""
    shown: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return shown
