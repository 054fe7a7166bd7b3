"""The form that a request asks its answer to have: what OpenAI calls `response_format`, and vLLM
`guided_...`. Each is one of the workers' ready-made logits processors, by another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from tandem.errors import InvalidRequestError
from tandem.logits.forms.limits import MAX_TEXT, SpecLimits, check_text
from tandem.logits.spec import LogitsProcessorEntry

Grammar: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
Choices: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=1024)
]
_QUOTED = {"regex": False, "ebnf": True}
"""Processors whose language has groups, and whether it has strings and comments."""


class TextFormat(
    msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True, kw_only=True
):
    """The answer may be any text."""


class JsonObjectFormat(
    msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True, kw_only=True
):
    """The answer is some JSON object."""


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    schema: dict[str, Any]
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: str | None = None
    strict: bool | None = None
    """The answer follows the schema whatever this says."""


class JsonSchemaFormat(
    msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True, kw_only=True
):
    """JSON that a JSON Schema describes."""

    json_schema: JsonSchema


ResponseFormat: TypeAlias = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """vLLM's `structured_outputs`: at most one of its fields is given."""

    json: dict[str, Any] | str | None = None
    """A schema, or the text of its JSON."""
    regex: Grammar | None = None
    choice: Choices | None = None
    grammar: Grammar | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    """JSON comes on one line anyway."""


_NOTHING = StructuredOutputs()


class FormFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The ways to ask for a form, of which a request may use one."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | None = None
    guided_regex: Grammar | None = None
    guided_choice: Choices | None = None
    guided_grammar: Grammar | None = None
    structured_outputs: StructuredOutputs | None = None
    """What vLLM calls the `guided_...` fields."""
    regex: Grammar | None = None
    ebnf: Grammar | None = None
    json_schema: Grammar | None = None
    """What SGLang calls them; the schema is the text of its JSON."""


@dataclass(slots=True, frozen=True)
class AnswerForm:
    field: str
    processor: LogitsProcessorEntry


def form_of(request: FormFields) -> AnswerForm | None:
    """The form of a request. Raises InvalidRequestError where two fields ask for one."""
    forms = list(_forms(request))
    if len(forms) > 1:
        raise InvalidRequestError(
            f"`{forms[0].field}` and `{forms[1].field}` both say what form the answer has; give "
            "one of them",
            param=forms[1].field,
        )
    return forms[0] if forms else None


def check_arguments(entries: Sequence[LogitsProcessorEntry], limits: SpecLimits) -> None:
    """Check size and nesting, in bounded time. Raises ValueError where a worker would refuse."""
    limits.check([entry.args for entry in entries])
    for entry in entries:
        quoted = _QUOTED.get(entry.name)
        if quoted is not None:
            for text in entry.args.values():
                check_text(str(text), quoted=quoted)


def _forms(request: FormFields) -> Iterator[AnswerForm]:
    match request.response_format:
        case JsonObjectFormat():
            yield _json("response_format", {"type": "object"})
        case JsonSchemaFormat(json_schema=JsonSchema(schema=schema)):
            yield _json("response_format", schema)
    if request.guided_json is not None:
        yield _json("guided_json", request.guided_json)
    if request.json_schema is not None:
        yield _json("json_schema", _schema("json_schema", request.json_schema))
    given = request.structured_outputs or _NOTHING
    if given.json is not None:
        yield _json("structured_outputs.json", _schema("structured_outputs.json", given.json))
    if given.json_object:
        yield _json("structured_outputs.json_object", {"type": "object"})
    for field, processor, argument, value in (
        ("guided_regex", "regex", "pattern", request.guided_regex),
        ("guided_choice", "choice", "texts", request.guided_choice),
        ("guided_grammar", "ebnf", "grammar", request.guided_grammar),
        ("structured_outputs.regex", "regex", "pattern", given.regex),
        ("structured_outputs.choice", "choice", "texts", given.choice),
        ("structured_outputs.grammar", "ebnf", "grammar", given.grammar),
        ("regex", "regex", "pattern", request.regex),
        ("ebnf", "ebnf", "grammar", request.ebnf),
    ):
        if value is not None:
            yield AnswerForm(field, LogitsProcessorEntry(processor, {argument: value}))


def _json(field: str, schema: dict[str, Any]) -> AnswerForm:
    return AnswerForm(field, LogitsProcessorEntry("json_schema", {"schema": schema}))


def _schema(field: str, given: dict[str, Any] | str) -> dict[str, Any]:
    """An object, or the text of one. Raises InvalidRequestError."""
    if isinstance(given, dict):
        return given
    try:
        found = msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidRequestError(f"`{field}` is no JSON Schema", param=field)
    return found
