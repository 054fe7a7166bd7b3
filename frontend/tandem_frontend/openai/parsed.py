"""Answers of chats, taken apart as they come: into content, reasoning and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tandem.upstream.answer import ChoiceFinish
from tandem_frontend.openai import answers
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Content, Part, Reasoning
from tandem_frontend.openai.answers import ChatFinishReason
from tandem_frontend.openai.asked import Asked, Parsing


class Parsed(NamedTuple):
    """Counts of what parsers found in the texts of all choices."""

    reasoning_tokens: int | None = None
    """None: reasoning is not told from the answer."""
    calls: int = 0
    broken_calls: int = 0
    """What began like a call and was none: it was shown as text."""

    @staticmethod
    def of(answers: Iterable[Answer]) -> Parsed:
        found = [each.parsed for each in answers]
        thought = [each.reasoning_tokens for each in found if each.reasoning_tokens is not None]
        return Parsed(
            sum(thought) if thought else None,
            sum(each.calls for each in found),
            sum(each.broken_calls for each in found),
        )


class Answer:
    """One choice's answer, taken apart as it comes."""

    def __init__(self, parsing: Parsing, *, whole: bool) -> None:
        """`whole`: nobody sees it before its end."""
        family = parsing.writes
        self._parser = (family.forced() if parsing.forced else family).parser(
            reasoning=parsing.reasoning,
            opened=parsing.opened,
            tools=parsing.tools,
            most_held=parsing.most_held,
            unmarked=parsing.unmarked,
            whole=whole,
        )
        self._parsing = parsing
        self.calls = 0
        """Shown calls that have begun."""
        self.reasoning_tokens = 0
        self._untold: list[tuple[int, int, int]] = []
        """Texts of which nobody knows yet what is reasoning: how many characters of each are so
        far, how many it has, and how many tokens."""
        self._ids: set[str] = set()
        """Ids that the model itself gave to its calls."""

    @property
    def parsed(self) -> Parsed:
        tells = self._parsing.reasoning
        return Parsed(
            self.reasoning_tokens if tells else None, self.calls, broken_calls=self._parser.broken
        )

    def push(self, text: str, tokens: int) -> list[Part]:
        """What is certain now that a text of so many tokens has come."""
        parser = self._parser
        thought = parser.in_reasoning
        parts = parser.push(text)
        if thought and parser.in_reasoning:
            self.reasoning_tokens += tokens
        elif len(parts) == 1 and type(parts[0]) is Content and not self._untold:  # nearly always
            return parts
        else:
            self._count(parts, len(text), tokens)
        return self._shown(parts)

    def flush(self) -> list[Part]:
        parts = self._parser.flush()
        self._count(parts, 0, 0)
        return self._shown(parts)

    def _count(self, parts: Sequence[Part], size: int, tokens: int) -> None:
        """Counts tokens in which reasoning begins or ends: by its characters, once it is known."""
        thought = sum(len(part.text) for part in parts if isinstance(part, Reasoning))
        self._untold.append((thought, size, tokens))
        if not self._parser.undecided:
            thought, size, tokens = map(sum, zip(*self._untold, strict=True))
            self.reasoning_tokens += min(tokens, round(tokens * thought / max(1, size)))
            self._untold.clear()

    def reason(self, ending: ChoiceFinish) -> ChatFinishReason:
        """A hook's end stays one, whatever was called before; calls that are all cut are none."""
        shown = range(self._parser.calls if not self._parsing.single else self.calls)
        none = self._parser.cut.issuperset(shown)
        if ending.reason != "stop" or ending.withheld or none:
            return ending.reason
        return "function_call" if self._parsing.older else "tool_calls"

    def _shown(self, parts: Sequence[Part]) -> list[Part]:
        shown = [self._begun(part) for part in parts if self._shows(part)]
        self.calls += sum(isinstance(part, CallStart) for part in shown)
        return shown

    def _begun(self, part: Part) -> Part:
        """An id that the model gives twice is none."""
        if isinstance(part, CallStart) and part.id:
            if part.id in self._ids:
                return part._replace(id="")
            self._ids.add(part.id)
        return part

    def _shows(self, part: Part) -> bool:
        match part:
            case Reasoning():
                return self._parsing.shows_reasoning
            case CallStart(call=call) | CallArguments(call=call):
                return call == 0 or not self._parsing.single
        return True


def answers_of(asked: Asked, *, whole: bool) -> list[Answer]:
    """For each choice, where answers are taken apart; else none."""
    parsing = asked.parsing
    return [Answer(parsing, whole=whole) for _ in range(asked.choices)] if parsing else []


class Message:
    """What parts come to, joined: a delta of a stream, or the message of a body."""

    def __init__(self, asked: Asked, choice: int) -> None:
        self._answer_id, self._choice = asked.id, choice
        self._older = asked.parsing is not None and asked.parsing.older
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, tuple[CallStart | None, list[str]]] = {}

    def add(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Content(text=text):
                    self._content.append(text)
                case Reasoning(text=text):
                    self._reasoning.append(text)
                case CallStart(call=call):
                    self._calls[call] = (part, [])
                case CallArguments(call=call, text=text):
                    self._calls.setdefault(call, (None, []))[1].append(text)

    def delta(self) -> dict[str, Any]:
        """As a chunk has it; empty: nothing is to be shown."""
        delta: dict[str, Any] = {}
        if self._content:
            delta["content"] = "".join(self._content)
        if self._reasoning:
            delta["reasoning_content"] = delta["reasoning"] = "".join(self._reasoning)
        calls = [self._call_delta(call, *each) for call, each in self._calls.items()]
        if calls and self._older:
            delta["function_call"] = calls[0]["function"]
        elif calls:
            delta["tool_calls"] = calls
        return delta

    def whole(self) -> answers.AssistantMessage:
        calls = [
            answers.ToolCall(
                id=call_id(self._answer_id, self._choice, start),
                function=answers.FunctionCall(name=start.name, arguments="".join(arguments)),
            )
            for start, arguments in self._calls.values()
            if start is not None
        ]
        content = "".join(self._content)
        message = answers.AssistantMessage(content=content if content or not calls else None)
        if self._reasoning:
            message.reasoning_content = message.reasoning = "".join(self._reasoning)
        if calls and self._older:
            message.function_call = calls[0].function
        elif calls:
            message.tool_calls = calls
        return message

    def _call_delta(
        self, call: int, start: CallStart | None, arguments: Sequence[str]
    ) -> dict[str, Any]:
        text = "".join(arguments)
        if start is None:
            return {"index": call, "function": {"arguments": text}}
        function = {"name": start.name, "arguments": text}
        id = call_id(self._answer_id, self._choice, start)
        return {"index": call, "id": id, "type": "function", "function": function}


def call_id(id: str, choice: int, start: CallStart) -> str:
    """What a call of the answer `id` is called: what its model calls it, where it does."""
    return start.id or f"call_{id}_{choice}_{start.call}"
