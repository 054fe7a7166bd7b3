"""Calls that a grammar makes the model write: those that must be made, and the arguments of tools
that are `strict`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.errors import UnsupportedError
from tandem.logits.forms.tagged import LENIENT
from tandem.logits.spec import LogitsProcessorEntry
from tandem_frontend.openai.answer_parsers import Envelope, ModelFamily
from tandem_frontend.openai.asked import Parsing
from tandem_frontend.openai.formats import AnswerForm
from tandem_frontend.openai.thought import Thought
from tandem_frontend.openai.tools import AskedTools, FunctionDefinition

PROCESSOR = "tagged"
DEEPEST = 64
"""How many schemas in each other are looked at; a schema deeper inside is left unchanged."""

_PARTS = re.compile(r"\\.|\(\?<?[=!>#]", re.DOTALL)
_BEYOND = re.compile(r"\(.*|\\[1-9bBcGhHkKRXZ]")
"""Look-around, references to earlier groups, and escapes of other dialects: no grammar has them."""
_DATA = ("const", "default", "enum", "examples")
"""Keywords that hold values, which may look like schemas."""


def writes_json(family: ModelFamily) -> bool:
    """Whether its calls have arguments that a grammar of JSON can write."""
    return family.envelope("f") is not None


def form_with_calls(
    tools: AskedTools | None,
    parsing: Parsing | None,
    form: AnswerForm | None,
    *,
    ends: Sequence[str],
) -> AnswerForm | None:
    """The form of an answer that may call tools, of what was asked of it otherwise. `ends`: texts
    of the tokens that end an answer.

    An answer that must be a call has no other form. One that may be JSON of a schema instead is the
    one or the other; any other form leaves no room for calls.
    """
    if tools is None or parsing is None or tools.choice == "none":
        return form
    family = parsing.writes
    if tools.choice == "required":
        field = "function_call" if tools.older else "tool_choice"
        return _tagged(tools, family, ends, field=field)
    marker = _marker(family, tools.callable[0].name)
    if not marker:  # nothing would tell calls from other JSON
        return form
    if form is not None:
        schema = form.processor.args.get("schema")
        if schema is None:
            return form
        return _tagged(tools, family, ends, field=form.field, answer=schema)
    if any(function.strict for function in tools.callable):
        field = "functions" if tools.older else "tools"
        return _tagged(tools, family, ends, field=field, marker=marker)
    return None


def behind_thought(form: AnswerForm | None, thought: Thought | None) -> AnswerForm | None:
    """The form of what follows an opened thought. Raises UnsupportedError for a grammar."""
    if form is None or thought is None or not thought.opened:
        return form
    args: dict[str, Any] = {"calls": [], **form.processor.args}
    match form.processor.name:
        case "json_schema":
            args["answer"] = args.pop("schema")
        case "ebnf":
            raise UnsupportedError(
                "A grammar is not offered behind the model's reasoning", param=form.field
            )
    return AnswerForm(form.field, LogitsProcessorEntry(PROCESSOR, args | {"before": thought.end}))


def _tagged(
    tools: AskedTools,
    family: ModelFamily,
    ends: Sequence[str],
    *,
    field: str,
    answer: Any = None,
    marker: str = "",
) -> AnswerForm:
    """`answer`: a schema that the answer may follow instead. `marker`: what tells calls from the
    free text in which they may stand, if any come.
    """
    written = family if writes_json(family) else family.forced()
    envelopes = {each.name: _envelope(written, each.name) for each in tools.callable}
    around = next(iter(envelopes.values()))
    end = _without(ends, around.end)
    args: dict[str, Any] = {
        "calls": [_call(each, envelopes[each.name].begin, end) for each in tools.callable],
        "separator": around.separator,
        "begin": around.section_begin,
        "end": _without(ends, around.section_end),
        "several": tools.parallel and not tools.named and end == around.end,
    }
    if marker:
        args["triggers"] = [marker]
    if answer is not None:
        args["answer"] = answer
    return AnswerForm(field, LogitsProcessorEntry(PROCESSOR, args))


def _envelope(family: ModelFamily, name: str) -> Envelope:
    envelope = family.envelope(name)
    assert envelope is not None, "writes_json says so"
    return envelope


def _call(function: FunctionDefinition, begin: str, end: str) -> dict[str, Any]:
    """A tool that is not strict keeps as much of its schema as a grammar can force."""
    schema = {"type": "object"} | (function.parameters or {})
    return {"begin": begin, "schema": schema if function.strict else forcible(schema), "end": end}


def _without(ends: Sequence[str], text: str) -> str:
    """Without a token that ends the answer, which comes by itself."""
    for end in ends:
        text = text.removesuffix(end)
    return text


def _marker(family: ModelFamily, name: str) -> str:
    """The marker that begins all calls; empty: none does, or their arguments are no JSON."""
    around = family.envelope(name)
    if around is None:
        return ""
    opening = around.section_begin + around.begin
    return max((mark for mark in family.markers if opening.startswith(mark)), key=len, default="")


def forcible(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without patterns that no grammar can force."""
    return {**_without_patterns(schema, DEEPEST), **LENIENT}


def _without_patterns(schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {
        key: value if key in _DATA else _walked(value, depth - 1)
        for key, value in schema.items()
        if not _is_beyond(key, value)
    }


def _walked(value: Any, depth: int) -> Any:
    if depth == 0:
        return value
    if isinstance(value, Mapping):
        return _without_patterns(value, depth)
    if isinstance(value, list):
        return [_walked(each, depth - 1) for each in value]
    return value


def _is_beyond(key: str, value: Any) -> bool:
    """Whether a keyword holds a pattern that no grammar can force."""
    if key == "pattern":
        patterns = [value] if isinstance(value, str) else []
    else:
        patterns = [*value] if key == "patternProperties" and isinstance(value, Mapping) else []
    return any(_BEYOND.fullmatch(part) for each in patterns for part in _PARTS.findall(each))
