"""Where a thought begins and ends: what is read, forced and counted is by one and the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case

from tandem.logits.spec import LogitsProcessorEntry
from tandem.text.stop_strings import StopStrings, Token
from tandem.text.thoughts import ThoughtMarks
from tandem.upstream.answer import ChoiceFinish
from tandem_answers.parsing.families import FAMILIES, detect
from tandem_answers.parsing.parser import Parser
from tandem_frontend.openai.answer_parsers import Content, Reasoning
from tandem_frontend.openai.asked import Parsing
from tandem_frontend.openai.forced import behind_thought
from tandem_frontend.openai.formats import AnswerForm
from tandem_frontend.openai.parsed import Answer
from tandem_frontend.openai.thought import Thought, thought_of

SIGNS = {
    "qwen3_coder": "<tool_call><function=",
    "mistral": "[TOOL_CALLS]",
    "mistral_args": "[TOOL_CALLS][ARGS]",
    "llama3_json": '<|start_header_id|>"parameters"',
    "llama4": "<|python_start|>",
    "granite": "<|start_of_role|><|tool_call|>",
    "phi4_mini": "<|tool|><|/tool|>",
    "internlm": "<|action_start|><|plugin|>",
    "jamba": "<tool_calls>",
    "lfm2": "<|tool_list_start|>",
}
"""What a template of the family has, which says nothing of a thought by itself."""
OPENED = "Hi<think>\n"
CLOSED = "Hi<think>\n\n</think>\n\n"


def thought(prompt: str, **options: Any) -> Thought:
    thinking = FAMILIES["qwen3"].thinking
    found = thought_of(thinking, prompt, options=options, variables=("enable_thinking",))
    assert found is not None
    return found


@pytest.mark.promise("S1-305")
@one_case("name", SIGNS)
def test_a_family_that_was_found_with_a_thought_keeps_it(name: str) -> None:
    family = detect(SIGNS[name] + "</think>", (), ())
    assert family is not None
    found = thought_of(family.thinking, OPENED, options={}, variables=())
    parsing = Parsing(family=family.name, most_held=99, reasoning=True, thought=found)
    answer = Answer(parsing, whole=False)
    parts = [*answer.push("Hm.</think>Well.", 3), *answer.flush()]
    assert parts == [Reasoning("Hm."), Content("Well.")]


@pytest.mark.parametrize(
    ("prompt", "options", "state"),
    [
        (OPENED, {}, "opened"),
        (OPENED, {"enable_thinking": False}, "opened"),
        (CLOSED, {}, "off"),
        ("Hi", {}, "possible"),
        ("Hi", {"enable_thinking": False}, "off"),
        ("Hi", {"thinking": False}, "possible"),
    ],
)
def test_the_prompt_says_first_whether_the_answer_thinks(
    prompt: str, options: dict[str, Any], state: str
) -> None:
    assert thought(prompt, **options).state == state


@pytest.mark.parametrize(
    ("name", "args", "behind"),
    [
        ("json_schema", {"schema": {"type": "object"}}, {"answer": {"type": "object"}}),
        ("regex", {"pattern": "a/b"}, {"pattern": "a/b"}),
        ("choice", {"texts": ["a"]}, {"texts": ["a"]}),
    ],
)
def test_a_form_begins_behind_the_thought_that_the_prompt_opened(
    name: str, args: dict[str, Any], behind: dict[str, Any]
) -> None:
    form = AnswerForm("guided", LogitsProcessorEntry(name, args))
    moved = behind_thought(form, thought(OPENED))
    assert moved is not None
    expected = {"calls": [], "before": "</think>"} | behind
    assert (moved.processor.name, moved.processor.args) == ("tagged", expected)
    assert behind_thought(form, thought(CLOSED)) == form


@pytest.mark.promise("S1-304")
@settings(max_examples=300)
@given(
    opened=st.booleans(),
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "a", "\n"]), min_size=2),
    stop=st.sampled_from(["a", "aa", "\n", "\na", "<"]),
)
def test_workers_and_the_parser_agree_on_what_is_content(
    opened: bool, pieces: list[str], stop: str
) -> None:
    text = "".join(pieces)
    stops = StopStrings([stop], thoughts=ThoughtMarks("<think>", "</think>", opened))
    shown = ""
    for place, each in enumerate(text):
        if stops.matched is None:
            shown += stops.push(Token(place, None, stops.token_end(each, incomplete=False)), each)
    if stops.matched is None:
        shown += stops.push(None, "")
    shown += stops.flush()
    whole, cut = content_of(text, opened=opened), content_of(shown, opened=opened)
    if opened or text.lstrip().startswith("<think>"):  # space behind a thought is no answer yet
        whole, cut = whole.lstrip(), cut.lstrip()
    before, found, _ = whole.partition(stop)
    assert (cut, stops.matched or "") == (before, found)


def content_of(text: str, *, opened: bool) -> str:
    family = FAMILIES["think"]
    parser = Parser(family, reasoning=True, opened=opened, tools=None, most_held=99)
    parts = [*parser.push(text), *parser.flush()]
    return "".join(part.text for part in parts if isinstance(part, Content))


# --- what an answer was, at its end ---

CUT = '<tool_call>{"name": "now", "arguments": {"a": [}}</tool_call>'
GOOD = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "single", "reason"),
    [
        (CUT + GOOD, False, "tool_calls"),
        (CUT + GOOD, True, "stop"),
        (GOOD + CUT, True, "tool_calls"),
        (CUT, False, "stop"),
        (f"<think>{GOOD} no.</think>No.", False, "stop"),
    ],
)
def test_an_answer_ends_with_calls_if_one_that_is_shown_is_whole(
    text: str, single: bool, reason: str
) -> None:
    parsing = Parsing(
        family="qwen3",
        most_held=999,
        reasoning=True,
        thought=thought("Hi"),
        tools={"now": {}},
        single=single,
    )
    answer = Answer(parsing, whole=False)
    answer.push(text, 9)
    answer.flush()
    assert answer.reason(ChoiceFinish(0, "stop", None)) == reason


@pytest.mark.parametrize("whole", [False, True])
def test_tokens_of_a_thought_are_counted_where_it_is_known_late(whole: bool) -> None:
    text = "<think>draft: " + GOOD + " no.</think>No."
    text = text.removeprefix("<think>") if whole else text
    parsing = Parsing(
        family="qwen3", most_held=999, reasoning=True, thought=thought("Hi"), tools={"now": {}}
    )
    answer = Answer(parsing, whole=whole)
    parts = [part for char in text for part in answer.push(char, 1)] + answer.flush()
    assert answer.calls == 0
    assert "".join(part.text for part in parts if isinstance(part, Content)) == "No."
    thought_of_it = len("draft: " + GOOD + " no.")
    assert abs(answer.reasoning_tokens - thought_of_it) <= len("<think></think>")
