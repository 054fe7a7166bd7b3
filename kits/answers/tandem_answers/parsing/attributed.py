"""Reads calls whose elements have attributes: the tool's name, the keys, and the values' types."""

from __future__ import annotations

import re

from tandem_answers.parsing.formats import Attributed
from tandem_answers.parsing.source import AnswerSource, Reader, SyntaxFault
from tandem_answers.parsing.values import is_object, to_json, typed

_ATTRIBUTE = re.compile(r'\s*(\w+)="([^"]*)"')
_TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")


def attributed_name(source: AnswerSource, format_: Attributed) -> Reader[str]:
    """Takes the rest of the tag that begins a call, and gives the tool's name in it."""
    said = yield from _attributes(source, format_, "tool", "index")
    if not said.get("index", "0").isdecimal():
        raise SyntaxFault
    return said.get("tool", "")


def attributed_arguments(source: AnswerSource, format_: Attributed) -> Reader[str]:
    """Takes a call's rest; gives the JSON object of its arguments. Raises Fault or Ended."""
    pairs: dict[str, str] = {}
    whole = ""
    while (yield from source.one_of(format_.opening, format_.closing)) == format_.opening:
        tag = yield from source.one_of("argument", "json")
        said = yield from _attributes(source, format_, "key", "type")
        type_ = said.get("type", "string")
        value = yield from _value(source, format_, tag)
        if type_ not in _TYPES or whole:
            raise SyntaxFault
        if tag == "argument" and "key" in said:
            key = to_json(said["key"])
            pairs[key] = to_json(value) if type_ == "string" else typed(value, frozenset())
        elif tag == "json" and not said.keys() - {"type"} and is_object(value) and not pairs:
            whole = value
        else:
            raise SyntaxFault
    yield from source.literal(f"call {format_.tag_end}")
    return whole or f"{{{', '.join(f'{key}: {value}' for key, value in pairs.items())}}}"


def _attributes(source: AnswerSource, format_: Attributed, *known: str) -> Reader[dict[str, str]]:
    """Takes a tag's attributes, of those that are known, and its end."""
    text = yield from source.until(format_.tag_end)
    said = dict(_ATTRIBUTE.findall(text))
    if _ATTRIBUTE.sub("", text).strip() or said.keys() - {*known}:
        raise SyntaxFault
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in said.items()}


def _value(source: AnswerSource, format_: Attributed, tag: str) -> Reader[str]:
    """Takes a value up to its end, or to the next element or the call's end."""
    end = f"{format_.closing}{tag}{format_.tag_end}"
    call_end = f"{format_.closing}call{format_.tag_end}"
    return (yield from source.until(end, stop=f"{format_.opening}argument ", last=call_end))
