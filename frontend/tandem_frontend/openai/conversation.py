"""The messages of a chat, as clients send them and as chat templates take them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from tandem.errors import InvalidRequestError
from tandem_frontend.openai.tools import CalledFunction, MadeCall

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
_SHORT_ID = 9
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


class TextPart(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: Role
    content: str | list[TextPart] | None = None
    """None, of the assistant alone: it said nothing, or called tools."""
    name: str | None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None
    """The id of the call whose result a message of the role `tool` is."""
    function_call: CalledFunction | None = None
    """The older form of `tool_calls`."""
    reasoning_content: str | None = None
    """What the assistant thought: for templates that show it to the model again."""
    reasoning: str | None = None
    """Another name of `reasoning_content`."""

    @property
    def text(self) -> str:
        """All text parts, joined by line feeds."""
        parts = self.content or ""
        return parts if isinstance(parts, str) else "\n".join(part.text for part in parts)

    @property
    def calls(self) -> list[MadeCall]:
        """All calls that it makes, in the newer form."""
        if self.function_call is not None and self.function_call.name:
            return [MadeCall(id=f"call_{self.function_call.name}", function=self.function_call)]
        return self.tool_calls or []

    def preamble(self, known: Sequence[str]) -> str:
        """Which of `known` an instruction begins with; empty: none."""
        if self.role not in ("system", "developer"):
            return ""
        return next((each for each in known if self.text.startswith(each)), "")

    def without_first_line(self) -> ChatMessage:
        """The message from its second line on; its content is a text then."""
        _, _, rest = self.text.partition("\n")
        return msgspec.structs.replace(self, content=rest.lstrip("\n"))

    def check(self, param: str, *, most_calls: int) -> None:
        """Raises InvalidRequestError for what its role does not have, and for more calls."""
        assistant = self.role == "assistant"
        if self.content is None and not assistant:
            raise InvalidRequestError(
                "`content` is null for the assistant alone", param=f"{param}.content"
            )
        if self.calls and not assistant:
            field = "tool_calls" if self.tool_calls else "function_call"
            raise InvalidRequestError(f"Only the assistant has `{field}`", param=f"{param}.{field}")
        if len(self.calls) > most_calls:
            raise InvalidRequestError(
                f"At most {most_calls} calls may be in a message", param=f"{param}.tool_calls"
            )
        for place, call in enumerate(self.tool_calls or ()):
            if not call.function.name:
                path = f"{param}.tool_calls[{place}].function.name"
                raise InvalidRequestError("A call needs its function's `name`", param=path)
        if self.role == "tool" and not self.tool_call_id:
            raise InvalidRequestError("`tool_call_id` is required", param=f"{param}.tool_call_id")
        if self.role == "function" and not self.name:
            raise InvalidRequestError("`name` is required", param=f"{param}.name")

    def for_template(self, *, parsed_arguments: bool, short_ids: bool) -> dict[str, Any]:
        """`parsed_arguments`: as objects, not JSON. `short_ids`: as Mistral's templates want."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.role == "function":
            message |= {"role": "tool", "tool_call_id": f"call_{self.name}"}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id:
            message["tool_call_id"] = self.tool_call_id
        if thought := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = thought
        if calls := self.calls:
            message["tool_calls"] = [_call(call, parsed_arguments) for call in calls]
        if short_ids:
            _shorten(message)
        return message


def _call(call: MadeCall, parsed: bool) -> dict[str, Any]:
    arguments = call.function.arguments
    if parsed and isinstance(arguments, str):
        arguments = _parsed(arguments)
    elif not parsed and isinstance(arguments, dict):
        arguments = msgspec.json.encode(arguments).decode()
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _parsed(arguments: str) -> str | dict[str, Any]:
    """A call's arguments as an object; text that is no JSON object stays text."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _shorten(message: dict[str, Any]) -> None:
    if "tool_call_id" in message:
        message["tool_call_id"] = _short(message["tool_call_id"])
    for call in message.get("tool_calls", ()):
        call["id"] = _short(call["id"])


def _short(id: str) -> str:
    """Nine letters and digits, the same ones for the same id."""
    if len(id) == _SHORT_ID and id.isascii() and id.isalnum():
        return id
    digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:_SHORT_ID])
