"""Reads arguments that are elements in each other, where a mark comes before each tag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tandem_answers.parsing.formats import Nested
from tandem_answers.parsing.schemas import alternatives, types_allowed
from tandem_answers.parsing.source import AnswerSource, Reader, SyntaxFault
from tandem_answers.parsing.values import to_json, typed

DEEPEST = 64
"""Elements that may stand in each other."""

_CALL = "invoke"


def another_call(source: AnswerSource, format_: Nested) -> Reader[bool]:
    """Takes the beginning of a call or the end of the section; says whether it is a call."""
    yield from source.one_of(format_.mark)
    tag = yield from source.one_of(f"<{_CALL}", format_.end)
    return tag != format_.end


def name_in_tag(source: AnswerSource) -> Reader[str]:
    """Takes the rest of the tag that begins a call, and gives the name in it."""
    yield from source.literal('name="')
    named = yield from source.until('"')
    yield from source.literal(">")
    return named


def nested_arguments(
    source: AnswerSource, format_: Nested, schema: Mapping[str, object]
) -> Reader[str]:
    """Takes a call's rest; gives the JSON object of its elements. Raises Fault or Ended."""
    opened = [_Element(_CALL, schema, schema, format_.item)]
    while True:
        text = yield from source.until(format_.mark)
        yield from source.one_of("<")
        tag = yield from source.until(">")
        last = opened[-1]
        if tag != f"/{last.tag}" and len(opened) > 1:
            # Models forget the mark before the end of a value.
            value, found, behind = text.rpartition(f"</{last.tag}>")
            if found and not behind.strip():
                opened.pop()
                opened[-1].add(last.tag, last.value(value))
                last, text = opened[-1], ""
        if tag == f"/{last.tag}":
            opened.pop()
            if not opened:
                return last.as_object(text)
            opened[-1].add(last.tag, last.value(text))
        elif tag.startswith("/") or text.strip() or len(opened) > DEEPEST:
            raise SyntaxFault
        else:
            opened.append(last.child(tag))


@dataclass
class _Element:
    tag: str
    schema: Mapping[str, object]
    root: Mapping[str, object]
    """The schema of the whole arguments, to which that of the element refers."""
    item: str
    inside: list[tuple[str, str]] = field(default_factory=list)
    """Tags and values, as JSON."""

    def add(self, tag: str, value: str) -> None:
        self.inside.append((tag, value))

    def child(self, tag: str) -> _Element:
        """An element inside, with its schema; without one it has any value."""
        said = (each for each in self._declared(tag) if isinstance(each, Mapping))
        return _Element(tag, next(said, {}), self.root, self.item)

    def value(self, text: str) -> str:
        """What the element is as JSON, where `text` stands behind the last element inside of it."""
        types = types_allowed(self.root, self.schema)
        if self.inside:
            items = all(tag == self.item for tag, _ in self.inside)
            listed = items and ("array" in types or "object" not in types)
            return self._as_list(text) if listed else self.as_object(text)
        if not text.strip() and types and types <= {"array", "object"}:
            return "[]" if "array" in types else "{}"
        return typed(text, types)

    def as_object(self, text: str) -> str:
        if text.strip():
            raise SyntaxFault
        pairs = {to_json(tag): value for tag, value in self.inside}
        return f"{{{', '.join(f'{key}: {value}' for key, value in pairs.items())}}}"

    def _as_list(self, text: str) -> str:
        if text.strip():
            raise SyntaxFault
        return f"[{', '.join(value for _, value in self.inside)}]"

    def _declared(self, tag: str) -> Iterator[object]:
        """What the schema says of one element inside, the best first."""
        for schema in alternatives(self.root, self.schema):
            properties = schema.get("properties")
            if isinstance(properties, Mapping) and tag in properties:
                yield properties[tag]
            if tag == self.item:
                yield schema.get("items")
            yield schema.get("additionalProperties")
