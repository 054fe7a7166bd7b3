"""What chat templates are given: messages, tools, options; and what a prompt says of its answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tandem.errors import InvalidRequestError
from tandem_answers.parsing.families import FAMILIES
from tandem_frontend.config import FrontendConfig
from tandem_frontend.openai.chat_template import ChatTemplate
from tandem_frontend.openai.chats import Chats
from tandem_frontend.openai.conversation import ChatMessage
from tandem_frontend.openai.forced import behind_thought, form_with_calls
from tandem_frontend.openai.requests import ChatRequest
from tandem_frontend.openai.tools import CalledFunction, MadeCall, asked_tools

pytestmark = pytest.mark.promise("S6-310")
CONFIG = FrontendConfig(model_path="m")
USER: dict[str, Any] = {"role": "user", "content": "Hello"}
TOOL = {"type": "function", "function": {"name": "look"}}
ALL = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{{ tools | tojson }}"


def request(**fields: Any) -> ChatRequest:
    return msgspec.convert({"model": "m", "messages": [USER]} | fields, ChatRequest)


def prompt(source: str, **fields: Any) -> str:
    asked = request(**fields)
    template = ChatTemplate(source, {"bos_token": "<s>"})
    chats = Chats(CONFIG, template, FAMILIES["qwen3"])
    return chats.text(asked.messages, asked, asked_tools(asked))


def said(id: str, arguments: str = '{"a": 1}') -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": id, "function": function}]}


def test_a_template_is_given_calls_results_and_reasoning() -> None:
    thought = said("a") | {"reasoning": "Hm."}
    result = {"role": "tool", "tool_call_id": "a", "content": "5", "name": "look"}
    lines = prompt(ALL, messages=[thought, result], tools=[TOOL]).split("\n")
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": {"a": 1}}}
    assert json.loads(lines[0]) == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [call],
    }
    assert json.loads(lines[1]) == result
    parameters = {"type": "object", "properties": {}}
    function = {"name": "look", "parameters": parameters}
    assert json.loads(lines[2]) == [{"type": "function", "function": function}]


def test_a_template_that_joins_texts_is_given_arguments_as_one() -> None:
    joins = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ '(' + c.function.arguments"
        " + ')' }}{% endfor %}{% endfor %}{{ tools }}"
    )
    assert prompt(joins, messages=[said("a")], tools=[TOOL]).startswith('({"a": 1})')
    called = CalledFunction(name="look", arguments={"a": 1})
    message = ChatMessage(role="assistant", tool_calls=[MadeCall(id="a", function=called)])
    for parsed, expected in ((True, {"a": 1}), (False, '{"a":1}')):
        shown = message.for_template(parsed_arguments=parsed, short_ids=False)
        assert shown["tool_calls"][0]["function"]["arguments"] == expected


def test_ids_are_made_to_fit_a_template_that_is_particular_about_them() -> None:
    particular = "{# ids: alphanumeric strings with length 9! #}" + ALL
    result = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
    other = {"role": "tool", "tool_call_id": "abcdefgh1", "content": "5"}
    messages = [said("call_1"), result, said("abcdefgh1"), other]
    lines = prompt(particular, messages=messages, tools=[TOOL]).split("\n")
    shown = [json.loads(line) for line in lines[:4]]
    made, kept = shown[1]["tool_call_id"], shown[3]["tool_call_id"]
    assert len(made) == 9
    assert made.isalnum()
    assert shown[0]["tool_calls"][0]["id"] == made
    assert (kept, shown[2]["tool_calls"][0]["id"]) == ("abcdefgh1", "abcdefgh1")
    assert '"tool_call_id": "call_1"' in prompt(ALL, messages=messages, tools=[TOOL])


def test_a_template_of_its_own_for_tools_is_used_for_them_alone() -> None:
    template = ChatTemplate("plain", {}, tool_source="tools: {{ tools | length }}")
    chats = Chats(CONFIG, template, FAMILIES["hermes"])
    with_tools = request(tools=[TOOL])
    assert chats.text(with_tools.messages, with_tools, asked_tools(with_tools)) == "tools: 1"
    assert chats.text(with_tools.messages, with_tools, None) == "plain"


OPTIONS = "{{ reasoning_effort }} {{ enable_thinking }} {{ add_generation_prompt }}"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "  True"),
        ({"reasoning_effort": "low"}, "low  True"),
        ({"reasoning_effort": "none"}, "none False True"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, " True True"),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            "none True True",
        ),
        ({"add_generation_prompt": False}, "  False"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "  False"),
    ],
    ids=str,
)
def test_options_reach_the_template_and_the_clients_own_go_first(
    fields: dict[str, Any], text: str
) -> None:
    assert prompt(OPTIONS, **fields) == text


@pytest.mark.parametrize("name", ["messages", "tools", "bos_token", "raise_exception"])
def test_options_that_are_not_the_clients_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prompt(ALL, chat_template_kwargs={name: "x"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.promise("S6-313")
@pytest.mark.parametrize(
    ("end", "opened"),
    [("", False), ("<think>\n", True), ("<think>", True), ("<think>\n\n</think>\n\n", False)],
)
def test_a_prompt_may_end_within_the_reasoning(end: str, opened: bool) -> None:
    asked = request()
    template = ChatTemplate("{{ messages[0].content }}" + end, {})
    chats = Chats(CONFIG, template, FAMILIES["qwen3"])
    parsing = chats.parsing(
        asked, None, chats.thought(asked, chats.text(asked.messages, asked, None))
    )
    assert parsing is not None
    assert (parsing.reasoning, parsing.opened) == (True, opened)
    assert Chats(CONFIG, template, FAMILIES["hermes"]).parsing(asked, None, None) is None


@pytest.mark.promise("S6-314")
def test_a_call_that_must_come_waits_for_reasoning_that_is_not_told_from_it() -> None:
    asked = request(tools=[TOOL], tool_choice="required", separate_reasoning=False)
    tools = asked_tools(asked)
    template = ChatTemplate("{{ tools | length }}<think>\n", {})
    chats = Chats(CONFIG, template, FAMILIES["qwen3"])
    parsing = chats.parsing(
        asked, tools, chats.thought(asked, chats.text(asked.messages, asked, tools))
    )
    assert parsing is not None
    assert (parsing.reasoning, parsing.opened) == (False, True)
    form = behind_thought(form_with_calls(tools, parsing, None, ends=()), parsing.thought)
    assert form is not None
    assert form.processor.args["before"] == "</think>"


def test_a_final_message_that_a_template_changes_cannot_be_continued() -> None:
    messages = [{"role": "assistant", "content": "hello"}]
    shouts = "{{ messages[0].content | upper }}"
    with pytest.raises(InvalidRequestError) as caught:
        prompt(shouts, messages=messages, continue_final_message=True)
    assert caught.value.param == "continue_final_message"
