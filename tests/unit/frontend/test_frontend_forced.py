"""Calls that a grammar makes the model write: which grammar, and that what it writes is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from one_case import one_case

from tandem.engine import model_files
from tandem.logits.forms.compiler import compile_form, matcher
from tandem.logits.forms.tagged import LENIENT, TaggedCall
from tandem.logits.model import Model
from tandem.logits.ready.tagged import Tagged
from tandem.logits.spec import LogitsProcessorEntry
from tandem_answers.parsing.families import FAMILIES
from tandem_answers.parsing.parser import Parser
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart
from tandem_frontend.openai.asked import Parsing
from tandem_frontend.openai.forced import behind_thought, forcible, form_with_calls
from tandem_frontend.openai.formats import AnswerForm
from tandem_frontend.openai.requests import ChatRequest
from tandem_frontend.openai.thought import thought_of
from tandem_frontend.openai.tools import asked_tools

pytestmark = pytest.mark.promise("S6-314")
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
JSON = AnswerForm("response_format", LogitsProcessorEntry("json_schema", {"schema": SCHEMA}))
REGEX = AnswerForm("guided_regex", LogitsProcessorEntry("regex", {"pattern": "a"}))
UNMARKED = ("json_array", "llama3_json")
"""Nothing but their place tells their calls from text."""
CALLING = [name for name, family in FAMILIES.items() if family.calls]


def tool(name: str, *, strict: bool | None = None, parameters: Any = PLACE) -> dict[str, Any]:
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


def form_of(
    family: str,
    *,
    form: AnswerForm | None = None,
    opened: bool = False,
    ends: tuple[str, ...] = ("<|im_end|>",),
    **fields: Any,
) -> tuple[AnswerForm | None, Parsing]:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | fields
    request = msgspec.convert(body, ChatRequest)
    tools = asked_tools(request)
    assert tools is not None
    forced = tools.choice == "required" and FAMILIES[family].envelope("f") is None
    parsing = Parsing(
        family=family,
        most_held=1000,
        reasoning=True,
        thought=thought_of(
            FAMILIES[family].thinking,
            FAMILIES[family].thinking.begin if opened else "",
            options={},
            variables=(),
        ),
        tools=tools.schemas(),
        forced=forced,
    )
    made = form_with_calls(tools, parsing, form, ends=ends)
    return behind_thought(made, parsing.thought), parsing


def written(args: dict[str, Any], *calls: tuple[int, str]) -> str:
    """What the grammar lets a model write: calls by their places, with their arguments."""
    made = [args["calls"][place] for place, _ in calls]
    texts = [
        f"{each['begin']}{arguments}{each['end']}"
        for each, (_, arguments) in zip(made, calls, strict=True)
    ]
    return args.get("before", "") + args["begin"] + args["separator"].join(texts) + args["end"]


def read(parsing: Parsing, text: str) -> tuple[list[str], list[str], int]:
    """Names and arguments of the calls that the text holds, and what is left of it."""
    family = FAMILIES[parsing.family]
    parser = Parser(
        family.forced() if parsing.forced else family,
        reasoning=parsing.reasoning,
        opened=parsing.opened,
        tools=parsing.tools,
        most_held=parsing.most_held,
    )
    parts = [*parser.push(text), *parser.flush()]
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = [
        "".join(p.text for p in parts if isinstance(p, CallArguments) and p.call == call)
        for call in range(len(names))
    ]
    calls = CallStart, CallArguments
    return names, arguments, sum(not isinstance(part, calls) for part in parts)


@pytest.mark.parametrize("opened", [False, True], ids=["answers", "thinks"])
@pytest.mark.parametrize("family", CALLING)
def test_calls_that_must_come_are_read_by_the_family_that_wrote_them(
    family: str, opened: bool
) -> None:
    opened = opened and FAMILIES[family].thinking is not None
    tools = [tool("look"), tool("list_all", parameters=None)]
    form, parsing = form_of(family, tools=tools, tool_choice="required", opened=opened)
    assert form is not None
    assert (form.field, form.processor.name) == ("tool_choice", "tagged")
    args = dict(form.processor.args)
    assert ("before" in args) == opened
    Tagged(**args | {"calls": msgspec.convert(args["calls"], list[TaggedCall])})
    assert args["several"]
    assert [call["schema"] for call in args["calls"]] == [
        PLACE | LENIENT,
        {"type": "object"} | LENIENT,
    ]
    text = written(args, (0, '{"place": "Bern"}'), (1, "{}"))
    assert read(parsing, text) == (["look", "list_all"], ['{"place": "Bern"}', "{}"], 0)


@pytest.mark.parametrize("family", ["hermes", "mistral", "qwen3_coder"])
def test_a_named_tool_alone_must_come_and_once(family: str) -> None:
    choice = {"type": "function", "function": {"name": "look"}}
    form, parsing = form_of(family, tools=[tool("list_all"), tool("look")], tool_choice=choice)
    assert form is not None
    assert not form.processor.args["several"]
    text = written(dict(form.processor.args), (0, '{"place": "Bern"}'))
    assert read(parsing, text) == (["look"], ['{"place": "Bern"}'], 0)


def test_a_token_that_ends_the_answer_is_left_to_come_by_itself() -> None:
    """Those of gpt-oss end a call and the answer, so that no call follows."""
    fields: dict[str, Any] = {"tools": [tool("look")], "tool_choice": "required"}
    form, parsing = form_of("gpt_oss", ends=("<|return|>", "<|call|>"), **fields)
    assert form is not None
    assert (form.processor.args["calls"][0]["end"], form.processor.args["several"]) == ("", False)
    text = written(dict(form.processor.args), (0, '{"place": "Bern"}'))
    assert read(parsing, text) == (["look"], ['{"place": "Bern"}'], 0)


def test_the_older_form_is_named_in_its_words() -> None:
    functions = [tool("look")["function"]]
    form, _ = form_of("hermes", functions=functions, function_call={"name": "look"})
    assert form is not None
    assert form.field == "function_call"
    form, _ = form_of("hermes", functions=[functions[0] | {"strict": True}])
    assert form is not None
    assert form.field == "functions"


@one_case("family", CALLING)
def test_calls_of_strict_tools_may_come_in_text(family: str) -> None:
    form, _ = form_of(family, tools=[tool("look"), tool("find", strict=True)])
    if FAMILIES[family].envelope("f") is None or family in UNMARKED:
        assert form is None
        return
    assert form is not None
    assert form.field == "tools"
    args = dict(form.processor.args)
    (trigger,) = args["triggers"]
    assert trigger
    assert "look" not in trigger
    Tagged(**args | {"calls": msgspec.convert(args["calls"], list[TaggedCall])})
    assert form_of(family, tools=[tool("look")])[0] is None, "nothing must be"


def test_the_answer_may_be_json_or_calls() -> None:
    form, _ = form_of("hermes", tools=[tool("look")], form=JSON)
    assert form is not None
    assert form.field == "response_format"
    assert form.processor.args["answer"] == SCHEMA
    assert "triggers" not in form.processor.args
    assert form_of("hermes", tools=[tool("look")], form=REGEX)[0] is REGEX
    for family in ("qwen3_coder", *UNMARKED):
        assert form_of(family, tools=[tool("look")], form=JSON)[0] is JSON
    form, _ = form_of("hermes", tools=[tool("look")], form=JSON, tool_choice="required")
    assert form is not None
    assert "answer" not in form.processor.args
    assert form_of("hermes", tools=[tool("look")], form=JSON, tool_choice="none")[0] is JSON


BEYOND = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
        "table": {"type": "object", "propertyNames": {"type": "string"}},
        "secret": {"type": "string", "format": "password"},
        "path": {"type": "string", "format": "file-path", "pattern": r"^(?!\.)a\(?=b"},
        "word": {"anyOf": [{"type": "string", "pattern": r"\bx\1"}, {"type": "null"}]},
        "kept": {"type": "string", "pattern": r"^\\ba+$", "default": {"pattern": "(?=a)"}},
        "pattern": {"type": "string"},
    },
    "required": ["tags"],
}
"""What pydantic and zod make of ordinary types; a property may be called as a keyword."""


def compiled(model_path: Path, form: AnswerForm) -> bytes:
    """As a worker compiles it. Raises ValueError."""
    model = Model(**model_files.processor_facts(model_path))
    args = dict(form.processor.args)
    processor = Tagged(**args | {"calls": msgspec.convert(args["calls"], list[TaggedCall])})
    source = compile_form("tagged", processor.source, model)
    matcher(source, model)
    return source


@pytest.mark.parametrize("family", ["hermes", "qwen3_coder"])
def test_a_tool_that_is_not_strict_loses_what_no_grammar_can_force(
    family: str, model_path: Path
) -> None:
    forced = tool("look", parameters=BEYOND)
    form, _ = form_of(family, tools=[forced], tool_choice="required")
    assert form is not None
    assert compiled(model_path, form)
    (call,) = form.processor.args["calls"]
    properties = call["schema"]["properties"]
    assert properties["kept"] == BEYOND["properties"]["kept"]
    assert properties["pattern"] == {"type": "string"}
    assert properties["word"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert call["schema"]["required"] == ["tags"]


@pytest.mark.parametrize("name", ["tags", "table", "secret", "path"])
def test_a_strict_tool_with_what_no_grammar_can_force_is_refused(
    name: str, model_path: Path
) -> None:
    parameters = {"type": "object", "properties": {name: BEYOND["properties"][name]}}
    tools = [tool("look", strict=True, parameters=parameters)]
    form, _ = form_of("hermes", tools=tools, tool_choice="required")
    assert form is not None
    with pytest.raises(ValueError, match=r"schema|Unimplemented|format|regex"):
        compiled(model_path, form)


def test_a_schema_of_any_depth_is_walked_in_bounded_depth() -> None:
    deep: dict[str, Any] = {"pattern": "(?=a)"}
    for _ in range(5000):
        deep = {"not": deep}
    assert forcible(deep)["not"]
