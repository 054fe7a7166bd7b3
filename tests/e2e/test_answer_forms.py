"""Answers of a form that the client asks for, through OpenAI's own client."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from stacks import MODEL

MESSAGES: list[Any] = [{"role": "user", "content": "Name two steps."}]
TOKENS = 200
REGEX = "(yes|no), [0-9]{3}"
CHOICES = ["yes", "no", "not at all", "perhaps tomorrow"]
GRAMMAR = 'root ::= "go " dir (" and " dir)?\ndir ::= "left" | "right"'
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"guided_regex": REGEX}, REGEX),
    "choice": ({"guided_choice": CHOICES}, "|".join(CHOICES)),
    "grammar": ({"guided_grammar": GRAMMAR}, "go (left|right)( and (left|right))?"),
    "json": ({"guided_json": {"enum": ["red", "green", 7]}}, '"red"|"green"|7'),
}


class Step(BaseModel, extra="forbid"):
    colour: Literal["red", "green"]
    last: bool


class Plan(BaseModel, extra="forbid"):
    first: Step
    second: Step | None


async def test_parse_gives_an_object_of_the_callers_class(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Plan, max_tokens=TOKENS, n=2
    )
    assert len(answer.choices) == 2
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Plan)
        Plan.model_validate_json(choice.message.content or "", strict=True)


async def test_a_stream_of_a_form_is_parsed_as_it_ends(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=Plan, max_tokens=TOKENS, temperature=0
    ) as stream:
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    whole = await client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=Plan, max_tokens=TOKENS, temperature=0
    )
    assert isinstance(answer.choices[0].message.parsed, Plan)
    assert answer.choices[0].message.content == whole.choices[0].message.content


async def test_a_json_object_begins_as_one_from_prefills_token_on(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=8
    )
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")
    plain = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_format={"type": "text"}, max_tokens=8
    )
    assert not (plain.choices[0].message.content or "").lstrip().startswith("{")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_guided_answer_is_of_its_form(client: AsyncOpenAI, form: str, stream: bool) -> None:
    fields, pattern = FORMS[form]
    asked: dict[str, Any] = {"model": MODEL, "prompt": "The answer is", "max_tokens": TOKENS}
    if stream:
        chunks = await client.completions.create(**asked, stream=True, extra_body=fields)
        text = "".join([chunk.choices[0].text async for chunk in chunks if chunk.choices])
    else:
        text = (await client.completions.create(**asked, extra_body=fields)).choices[0].text
    assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}},
            "response_format",
        )
        for s in ({"type": "no such type"}, {"$ref": "#/$defs/missing"})
    ]
    + [
        ({"guided_json": {"type": 5}}, "guided_json"),
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_grammar": "root := x"}, "guided_grammar"),
        (
            {
                "guided_choice": ["a"],
                "logits_processors": [{"name": "forced_sequence", "args": {"token_ids": [10**6]}}],
            },
            "logits_processors[0]",
        ),
    ],
    ids=json.dumps,
)
async def test_a_form_that_is_none_is_refused_by_its_field(
    client: AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=8, extra_body=fields
        )
    assert (refusal.value.code, refusal.value.param) == ("invalid_request", param)


TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": name, "parameters": schema, "strict": True},
    }
    for name, schema in (("plan", Plan.model_json_schema()), ("step", Step.model_json_schema()))
]
KINDS = {"plan": Plan, "step": Step}


@pytest.mark.promise("S6-314")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_call_that_must_come_has_arguments_that_validate(
    client: AsyncOpenAI, stream: bool
) -> None:
    """Through both phases, with a hook in each."""
    fields: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": TOKENS,
    }
    if stream:
        async with client.chat.completions.stream(**fields) as events:
            async for _ in events:
                pass
            choice: Any = (await events.get_final_completion()).choices[0]
    else:
        choice = (await client.chat.completions.create(**fields)).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    KINDS[call.function.name].model_validate_json(call.function.arguments, strict=True)
    assert not choice.message.content


@pytest.mark.promise("S6-314")
async def test_a_named_tool_is_called(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "step"}},
        max_tokens=TOKENS,
        n=2,
    )
    for choice in answer.choices:
        (call,) = choice.message.tool_calls or ()
        assert call.type == "function"
        Step.model_validate_json(call.function.arguments, strict=True)


async def test_tools_beside_a_form_leave_both_ways_open(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.parse(
        model=MODEL,
        messages=MESSAGES,
        tools=TOOLS,
        parallel_tool_calls=False,
        response_format=Plan,
        max_tokens=TOKENS,
        n=4,
    )
    for choice in answer.choices:
        calls = choice.message.tool_calls or []
        assert bool(calls) != isinstance(choice.message.parsed, Plan)
        for call in calls:
            KINDS[call.function.name].model_validate_json(call.function.arguments, strict=True)


async def test_a_schema_of_a_tool_that_is_none_is_refused_by_its_field(client: AsyncOpenAI) -> None:
    function = {"name": "f", "parameters": {"type": "no such type"}, "strict": True}
    tools: list[Any] = [{"type": "function", "function": function}]
    for choice, param in (("required", "tool_choice"), ("auto", "tools")):
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, tools=tools, tool_choice=choice, max_tokens=8
            )
        assert (refusal.value.code, refusal.value.param) == ("invalid_request", param)
