"""Reads the calls of an answer, each in its family's syntax."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from tandem.text.json_reader import JsonReader
from tandem_answers.parsing.attributed import attributed_arguments, attributed_name
from tandem_answers.parsing.formats import (
    Attributed,
    Format,
    Named,
    Nested,
    Objects,
    Pythonic,
    Unquoted,
    Xml,
)
from tandem_answers.parsing.nested import another_call, name_in_tag, nested_arguments
from tandem_answers.parsing.schemas import types_of_property
from tandem_answers.parsing.source import AnswerSource, Reader, SyntaxFault
from tandem_answers.parsing.unquoted import unquoted_arguments
from tandem_answers.parsing.values import is_object, keyword_arguments, to_json, typed
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Tools

_ARGUMENT_KEYS = ("arguments", "parameters")
_IDLE_KEYS = ("id", "index", "type")
"""What models also write into a call."""
_OUTSIDE_STRINGS = re.compile(r"""[^()\[\]{}'"]*""")
_IN_STRING = {
    "'": re.compile(r"(?:[^'\\]+|\\.)*", re.DOTALL),
    '"': re.compile(r'(?:[^"\\]+|\\.)*', re.DOTALL),
}
_ID = re.compile(r"[!-~]{1,256}")


class CallStage(Enum):
    """How far the reading of a call has come: it says what becomes of the text should it fail."""

    TEXT = auto()
    """No call has begun."""
    SPACE = auto()
    """Space that may stand before a call has come, and is held."""
    HEAD = auto()
    """A call has begun and nothing of it is given out: its text is held."""
    ARGUMENTS = auto()
    """The arguments are given out as they come."""
    TAIL = auto()
    """The arguments are given out completely. Text behind them is held."""


class CallReader:
    """Reads calls of tools, where the source stands, and gives their parts to `emit`."""

    def __init__(
        self, source: AnswerSource, tools: Tools, emit: Callable[[CallStart | CallArguments], None]
    ) -> None:
        self.stage = CallStage.TEXT
        self.calls = 0
        self.certain = False
        """Whether what is read can hardly be anything but a call."""
        self._source = source
        self._tools = tools
        self._emit = emit

    def read(self, format_: Format) -> Reader[None]:
        """Reads what follows the first line of `begin`. Raises Fault or Ended: see `stage`."""
        self.stage = CallStage.HEAD
        for line in format_.begin.split("\n")[1:]:
            yield from self._source.literal(line)
        match format_:
            case Objects():
                yield from self._objects(format_)
            case Named():
                yield from self._named(format_)
            case Xml():
                yield from self._xml(format_)
            case Pythonic():
                yield from self._pythonic()
            case Unquoted():
                yield from self._unquoted(format_)
            case Nested():
                yield from self._nested(format_)
            case Attributed():
                yield from self._attributed(format_)
        self._source.release()
        self.stage = CallStage.TEXT

    def arguments(self, text: str) -> None:
        if text:
            self._emit(CallArguments(self.calls - 1, text))

    def _declared(self, name: str) -> str:
        if name not in self._tools:
            raise SyntaxFault
        self.certain = True
        return name

    def _whole(self, name: str, id_: str, arguments: str) -> None:
        self._begin(name, id_)
        self.arguments(arguments)
        self._end()

    def _begin(self, name: str, id_: str) -> None:
        self._source.release()
        self.calls += 1
        self._emit(CallStart(self.calls - 1, name, id_ if _ID.fullmatch(id_) else ""))

    def _end(self) -> None:
        self._source.hold()
        self.stage = CallStage.TAIL

    def _stream(self, name: str, id_: str) -> Reader[None]:
        """Gives out a call whose arguments are the object that comes next, as it comes."""
        if (yield from self._source.peek()) != "{":
            raise SyntaxFault
        self._begin(name, id_)
        self.stage = CallStage.ARGUMENTS
        reader = JsonReader()
        while not reader.over:
            written, end = reader.mended(self._source.text, self._source.at)
            self._source.take(end)
            self.arguments(written)
            if reader.faulty:
                raise SyntaxFault
            if not reader.over:
                yield from self._source.more()
        self._end()

    def _objects(self, format_: Objects) -> Reader[None]:
        listed = format_.begin == "[" or (yield from self._source.one_of("{", "[")) == "["
        if listed:
            yield from self._source.literal("{")
        yield from self._object(format_)
        while listed and (yield from self._another("]")):
            yield from self._source.literal("{")
            self.stage = CallStage.HEAD
            yield from self._object(format_)
        yield from self._source.literal(format_.end)

    def _another(self, end: str) -> Reader[bool]:
        """Whether another call of a list follows."""
        char = yield from self._source.peek()
        if char == ",":
            self._source.hold()
        yield from self._source.one_of(",", end)
        return char == ","

    def _object(self, format_: Objects) -> Reader[None]:
        """Reads a call from behind its first brace on."""
        source = self._source
        name = id_ = arguments = ""
        given = unknown = False
        while True:
            key = yield from self._string()
            yield from source.literal(":")
            if key == format_.name:
                name = self._declared((yield from self._string()))
            elif key == format_.id and (yield from source.peek()) == '"':
                id_ = yield from self._string()
            elif key in _ARGUMENT_KEYS and (given or arguments):
                raise SyntaxFault
            elif key in _ARGUMENT_KEYS and name and (yield from source.peek()) == "{":
                given = True
                yield from self._stream(name, id_)
            elif key in _ARGUMENT_KEYS:
                arguments = _object_in((yield from source.value()))
            elif self.certain or key in _IDLE_KEYS:
                unknown |= key not in _IDLE_KEYS
                yield from source.value()
            else:
                raise SyntaxFault
            if (yield from source.one_of(",", "}")) == "}":
                break
        if unknown and not (given or arguments):
            # Its arguments may be under a key that is misspelt: a call without them is another.
            raise SyntaxFault
        if not given:
            self._whole(self._declared(name), id_, arguments or "{}")

    def _string(self) -> Reader[str]:
        if (yield from self._source.peek()) != '"':
            raise SyntaxFault
        return str(json.loads((yield from self._source.value())))

    def _named(self, format_: Named) -> Reader[None]:
        source = self._source
        written = yield from source.word()
        named = re.fullmatch(format_.pattern, written)
        name = self._declared(named[1] if named else "")
        id_ = written if format_.ids else ""
        for word in format_.between.split():
            while (mark := (yield from source.one_of(word, *format_.skipped))) != word:
                if mark == format_.id:
                    id_ = yield from source.word()
        yield from self._stream(name, id_)
        yield from source.literal(format_.end)

    def _xml(self, format_: Xml) -> Reader[None]:
        source = self._source
        name = self._declared((yield from source.word()))
        yield from source.literal(format_.name_end)
        schema = self._tools[name]
        key_mark, *key_rest = format_.key.split()
        end_mark, *end_rest = format_.end.split()
        pairs: dict[str, str] = {}
        if (yield from source.peek()) == "{":
            yield from self._stream(name, "")
            yield from source.literal(format_.end)
            return
        while (yield from source.one_of(key_mark, end_mark)) == key_mark:
            yield from source.literal(" ".join(key_rest))
            key = yield from source.until(format_.key_end)
            yield from source.literal(format_.value)
            value = yield from source.until(format_.value_end, key_mark, last=end_mark)
            pairs |= _pair(format_, schema, key, value)
        yield from source.literal(" ".join(end_rest))
        arguments = ", ".join(f"{key}: {value}" for key, value in pairs.items())
        self._whole(name, "", f"{{{arguments}}}")

    def _pythonic(self) -> Reader[None]:
        source = self._source
        while True:
            name = self._declared((yield from source.word()))
            yield from source.literal("(")
            text = yield from self._parenthesised()
            try:
                arguments = keyword_arguments(text)
            except ValueError:
                raise SyntaxFault from None
            self._whole(name, "", arguments)
            if not (yield from self._another("]")):
                return
            yield from source.peek()
            self.stage = CallStage.HEAD

    def _unquoted(self, format_: Unquoted) -> Reader[None]:
        name = self._declared((yield from self._source.word()))
        read = unquoted_arguments(self._source, format_, self._tools[name])
        self._whole(name, "", (yield from read))
        yield from self._source.literal(format_.end)

    def _nested(self, format_: Nested) -> Reader[None]:
        called = False
        while (yield from another_call(self._source, format_)):
            self.stage = CallStage.HEAD
            name = self._declared((yield from name_in_tag(self._source)))
            read = nested_arguments(self._source, format_, self._tools[name])
            self._whole(name, "", (yield from read))
            called = True
        if not called:
            raise SyntaxFault

    def _attributed(self, format_: Attributed) -> Reader[None]:
        name = self._declared((yield from attributed_name(self._source, format_)))
        self._whole(name, "", (yield from attributed_arguments(self._source, format_)))

    def _parenthesised(self) -> Reader[str]:
        """Takes all up to the parenthesis that closes; gives what stands before it."""
        source = self._source
        taken = []
        depth = 1
        quote = ""
        while True:
            run = (_IN_STRING[quote] if quote else _OUTSIDE_STRINGS).match(source.text, source.at)
            assert run is not None
            taken.append(source.take(run.end()))
            if source.spent or source.text[source.at] == "\\":
                yield from source.more()
                continue
            char = source.text[source.at]
            if quote or char in "'\"":
                quote = "" if quote else char
            else:
                depth += 1 if char in "([{" else -1
            if depth == 0:
                yield from source.one_of(")")
                return "".join(taken)
            taken.append(source.take(source.at + 1))


def _object_in(value: str) -> str:
    """The arguments that a value stands for: itself, or what a string has in it."""
    text = str(json.loads(value)) if value.startswith('"') else value
    if text.strip() in ("", "null"):
        return "{}"
    written, end = JsonReader().mended(text, 0)
    if not is_object(written + text[end:]):
        raise SyntaxFault
    return written + text[end:]


def _pair(format_: Xml, schema: Mapping[str, object], key: str, value: str) -> dict[str, str]:
    string = ""
    if format_.typed:
        key, _, string = key.partition(format_.typed)
        if string not in ("", "true", "false"):
            raise SyntaxFault
    key = key.strip()
    if format_.padded:
        value = value.removeprefix("\n").removesuffix("\n")
    types = types_of_property(schema, key)
    if string:
        types = frozenset({"string"}) if string == "true" else types - {"string"}
    return {to_json(key): typed(value, types)}
