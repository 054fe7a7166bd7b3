"""Reads arguments that are nearly JSON: with bare keys, and quotes of the family's own."""

from __future__ import annotations

from collections.abc import Mapping

from tandem_answers.parsing.formats import Unquoted
from tandem_answers.parsing.schemas import types_of_property
from tandem_answers.parsing.source import AnswerSource, Reader, SyntaxFault
from tandem_answers.parsing.values import to_json, typed

DEEPEST = 64
"""Objects and lists that may stand in each other."""


def unquoted_arguments(
    source: AnswerSource, format_: Unquoted, schema: Mapping[str, object]
) -> Reader[str]:
    """Takes an object; gives its JSON. A value without quotes that belongs to the object itself has
    the type of the schema. Raises Fault or Ended."""
    if (yield from source.peek()) != "{":
        raise SyntaxFault
    return (yield from _Values(source, format_, schema).container(1))


class _Values:
    """What stands in the arguments of one call."""

    def __init__(
        self, source: AnswerSource, format_: Unquoted, schema: Mapping[str, object]
    ) -> None:
        self._source = source
        self._format = format_
        self._schema = schema

    def container(self, depth: int) -> Reader[str]:
        """An object or a list, the outermost of which has depth 1."""
        source = self._source
        if depth > DEEPEST:
            raise SyntaxFault
        begin = yield from source.one_of("{", "[")
        end = "}" if begin == "{" else "]"
        pairs: dict[str, str] = {}
        values: list[str] = []
        while (yield from source.peek()) != end:
            if begin == "[":
                values.append((yield from self._value(depth, frozenset())))
            else:
                key = yield from self._key()
                types = types_of_property(self._schema, key) if depth == 1 else frozenset[str]()
                pairs[key] = yield from self._value(depth, types)
            if (yield from source.peek()) != end:
                yield from source.one_of(",")
        yield from source.one_of(end)
        values += [f"{to_json(key)}: {value}" for key, value in pairs.items()]
        return f"{begin}{', '.join(values)}{end}"

    def _key(self) -> Reader[str]:
        if (yield from self._source.peek()) == self._format.quote[0]:
            key = yield from self._string()
        else:
            key = (yield from self._source.up_to(":,{}[]")).strip()
        yield from self._source.one_of(":")
        return key

    def _value(self, depth: int, types: frozenset[str]) -> Reader[str]:
        char = yield from self._source.peek()
        if char in "{[":
            return (yield from self.container(depth + 1))
        if char == self._format.quote[0]:
            return to_json((yield from self._string()))
        if char == '"':
            return (yield from self._source.value())
        return typed((yield from self._source.up_to(",}]")).strip(), types)

    def _string(self) -> Reader[str]:
        yield from self._source.one_of(self._format.quote)
        return (yield from self._source.until(self._format.quote))
