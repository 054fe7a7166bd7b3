"""What answers of each family are made of, recorded in its own syntax."""

from __future__ import annotations

import json
from typing import Any

import pytest
from one_case import one_case
from parsed_answers import parsed, parser, plain
from recorded_answers import ANSWERS, ONE, OTHERS, RECORDED, TWO

from tandem_answers.parsing.families import FAMILIES, detect
from tandem_frontend.openai.answer_parsers import CallArguments, CallStart, Content, Reasoning

THINKING = [name for name, recorded in RECORDED.items() if recorded.opens[0]]
BARE = ("llama3_json", "json_array")
"""Their calls are calls only where nothing comes before them."""


@pytest.mark.promise("S6-240")
@one_case("answer", ANSWERS)
@one_case("family", RECORDED)
def test_a_recorded_answer_is_its_calls(family: str, answer: str) -> None:
    text = getattr(RECORDED[family], answer)
    one = parser(family)
    assert plain(parsed(one, [text])) == ANSWERS[answer]
    assert (one.calls, one.broken) == (len(ANSWERS[answer]), 0)


@pytest.mark.promise("S6-240")
@one_case("family", [name for name in RECORDED if name not in BARE])
def test_text_before_and_behind_calls_is_content(family: str) -> None:
    text = f"Let me see: {RECORDED[family].one}\nThat is all <b>, [1]."
    assert plain(parsed(parser(family), [text])) == [
        "Let me see: ",
        *ONE,
        "\nThat is all <b>, [1].",
    ]


@pytest.mark.parametrize("family", BARE)
def test_bare_calls_behind_text_are_text(family: str) -> None:
    text = f"For example {RECORDED[family].one}"
    one = parser(family)
    assert plain(parsed(one, [text])) == [text]
    assert one.broken == 0


@pytest.mark.promise("S6-240")
@one_case("opened", [True, False])
@one_case("family", THINKING)
def test_reasoning_comes_before_calls(family: str, opened: bool) -> None:
    begin, end = RECORDED[family].opens
    text = ("" if opened else begin) + f"Hm, {{1}}.\n{end}\n\n{RECORDED[family].one}"
    one = parser(family, opened=opened)
    assert plain(parsed(one, [text])) == [["Hm, {1}.\n"], *ONE]
    assert not one.in_reasoning


@one_case("family", THINKING)
def test_reasoning_comes_before_content(family: str) -> None:
    begin, end = RECORDED[family].opens
    final = "<|start|>assistant<|channel|>final<|message|>" if family == "gpt_oss" else ""
    one = parser(family)
    assert one.push(f"{begin}Hm.")
    assert one.in_reasoning
    assert plain(parsed(one, [f"{end}\n\n{final}  Yes.\n"])) == [f"{'  ' if final else ''}Yes.\n"]


@one_case("family", RECORDED)
def test_an_answer_without_calls_is_content(family: str) -> None:
    text = "A list [1, 2], a {set}, <b>bold</b>,\n\n and that is all;\n"
    assert plain(parsed(parser(family), [text])) == [text]


@one_case("family", RECORDED)
def test_without_tools_calls_are_not_looked_for(family: str) -> None:
    text = RECORDED[family].one
    parts = parsed(parser(family, tools=None), [text])
    said = "".join(part.text for part in parts if isinstance(part, Content))
    assert len(parts) <= 1
    assert "get_weather" in said
    assert "Paris" in said


@pytest.mark.promise("S6-240")
@one_case("family", RECORDED)
def test_a_tool_that_is_not_declared_is_text(family: str) -> None:
    text = RECORDED[family].one
    one = parser(family, tools={"get_time": {}})
    said = plain(parsed(one, [text]))
    assert one.calls == 0
    assert "get_weather" in "".join(said)
    assert "Paris" in "".join(said)


@one_case(("family", "text", "expected"), OTHERS)
def test_other_ways_to_write_a_call(family: str, text: str, expected: list[Any]) -> None:
    one = parser(family)
    assert plain(parsed(one, [text])) == expected


@pytest.mark.parametrize(
    ("family", "section"),
    [
        ("kimi_k2", "<|tool_call_section_{}|>"),
        ("deepseek_v32", "<{}｜DSML｜tool_calls>"),
        ("deepseek_v4", "<{}｜DSML｜function_calls>"),
    ],
)
def test_a_section_of_a_sister_version_s_name_is_not_shown(family: str, section: str) -> None:
    words = ("begin", "end") if family == "kimi_k2" else ("", "/")
    begin, end = map(section.format, words)
    call = parser(family)
    body = RECORDED[family].one
    for each in FAMILIES[family].sections:
        body = body.replace(each, "")
    assert plain(parsed(call, [f"{begin}{body}{end}"])) == ONE


def test_arguments_in_json_stay_as_they_were_written() -> None:
    written = '{ "city":"P\\u0061ris",\n"x" :1.50e+2 }'
    text = f'<tool_call>{{"name": "get_weather", "arguments": {written}}}</tool_call>'
    assert parsed(parser("hermes"), [text])[1] == CallArguments(0, written)


def test_a_key_that_is_written_twice_is_given_once() -> None:
    argument = "<arg_key>a</arg_key><arg_value>1</arg_value>"
    text = f"<tool_call>add{argument}{argument}</tool_call>"
    assert parsed(parser("glm45"), [text])[1] == CallArguments(0, '{"a": 1}')


def test_arguments_come_before_the_call_has_ended() -> None:
    one = parser("hermes")
    parts = one.push('<tool_call>{"name": "get_weather", "arguments": {"city": "Par')
    assert parts == [CallStart(0, "get_weather"), CallArguments(0, '{"city": "Par')]


def test_the_model_s_own_ids_are_given() -> None:
    kimi = parsed(parser("kimi_k2"), [RECORDED["kimi_k2"].two])
    assert [part.id for part in kimi if isinstance(part, CallStart)] == [
        "functions.get_weather:0",
        "functions.add:1",
    ]
    mistral = parsed(parser("mistral_args"), [RECORDED["mistral_args"].two])
    assert [part.id for part in mistral if isinstance(part, CallStart)] == ["", "a1b2c3d4e"]


def test_an_id_that_no_header_could_carry_is_none() -> None:
    text = '<tool_call>{"id": "\\ud800", "name": "now", "arguments": {}}</tool_call>'
    assert parsed(parser("hermes"), [text])[0] == CallStart(0, "now", "")


@pytest.mark.parametrize("family", ["qwen3", "glm45", "kimi_k2"])
def test_a_call_ends_the_reasoning_of_models_that_forget_to(family: str) -> None:
    one = parser(family, opened=True)
    assert plain(parsed(one, [f"So I call it. {RECORDED[family].one}"])) == [
        ["So I call it. "],
        *ONE,
    ]
    assert not one.in_reasoning


def test_a_marker_in_reasoning_that_begins_no_call_is_reasoning() -> None:
    text = "I could write <tool_call> here.</think>No."
    one = parser("qwen3", opened=True)
    assert plain(parsed(one, [text])) == [["I could write <tool_call> here."], "No."]


def test_the_name_of_a_marker_begins_no_reasoning_amid_text() -> None:
    text = "It writes <think> first."
    assert parsed(parser("qwen3"), [text]) == [Content(text)]
    assert parsed(parser("qwen3", opened=True), [text]) == [Reasoning(text)]
    twice = ["<think>", "<think>so</think>"]
    assert parsed(parser("qwen3"), twice) == [Reasoning("so")]


def test_an_answer_in_json_that_is_no_call_comes_at_once() -> None:
    one = parser("llama3_json")
    assert one.push('{"title":') == [Content('{"title":')]


def test_calls_inside_reasoning_are_reasoning_elsewhere() -> None:
    text = f"{RECORDED['minimax_m2'].one}</think>No."
    assert plain(parsed(parser("minimax_m2", opened=True), [text])) == [
        [RECORDED["minimax_m2"].one],
        "No.",
    ]


@pytest.mark.promise("S6-241")
@pytest.mark.parametrize("family", [each for each in FAMILIES if FAMILIES[each].envelope("now")])
@pytest.mark.parametrize("calls", [ONE, TWO], ids=["one", "two"])
def test_what_an_envelope_forces_is_parsed(family: str, calls: list[Any]) -> None:
    """Its section stands around all calls, and its separator between two."""
    envelopes = [FAMILIES[family].envelope(name) for name, _ in calls]
    texts = [
        f"{envelope.begin}{json.dumps(arguments)}{envelope.end}"
        for envelope, (_, arguments) in zip(envelopes, calls, strict=True)
        if envelope is not None
    ]
    first = envelopes[0]
    assert first is not None
    text = first.section_begin + first.separator.join(texts) + first.section_end
    one = parser(family)
    assert plain(parsed(one, [text])) == calls
    assert one.broken == 0


@pytest.mark.parametrize("family", ["qwen3_coder", "glm45", "pythonic", "think"])
def test_what_is_no_json_has_no_envelope(family: str) -> None:
    assert FAMILIES[family].envelope("now") is None


@pytest.mark.promise("S6-241")
def test_forced_calls_follow_the_family_s_reasoning() -> None:
    array = FAMILIES["glm45"].forced()
    text = f"Hm.</think>\n{RECORDED['json_array'].two}"
    assert plain(parsed(parser(array, opened=True), [text])) == [["Hm."], *ANSWERS["two"]]


@one_case(
    ("template", "family"),
    [
        ("<tool_call>{{ name }}</tool_call>", "hermes"),
        ("<tool_call></tool_call>{{ content.split('</think>') }}", "qwen3"),
        ("<tool_call>\n<function=example>\n</tool_call><think>\n", "qwen3_coder"),
        ("<tool_call>{name}\n<arg_key>k</arg_key></think>", "glm45"),
        ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>\n```json</think>", "deepseek_r1"),
        ("<｜tool▁call▁begin｜><｜tool▁sep｜></think>", "deepseek_v31"),
        ("[TOOL_CALLS] [", "mistral"),
        ("[TOOL_CALLS]{{ name }}[ARGS]", "mistral_args"),
        ("<|start|>assistant<|channel|>analysis<|message|><|end|><|call|>", "gpt_oss"),
        ("<|start_header_id|> \"parameters\": <|python_tag|>", "llama3_json"),
        ("<minimax:tool_call><think></think>", "minimax_m2"),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini"),
        ("<|start_of_role|><|tool_call|>", "granite"),
        ("{{ content.split('</think>')[-1] }}", "think"),
        ("[THINK][/THINK]", "magistral"),
    ],
)  # fmt: skip
def test_a_family_is_told_by_the_chat_template(template: str, family: str) -> None:
    found = detect(template, [], [])
    assert found == FAMILIES[family]


def test_a_family_is_told_by_tokens_or_architecture_where_the_template_says_nothing() -> None:
    tokens = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"]
    found = detect("{{ messages }}", [], tokens)
    assert found is not None
    assert found.name == "kimi_k2"
    assert detect(None, ["GptOssForCausalLM"], []) == FAMILIES["gpt_oss"]
    assert detect("{{ messages }}", ["LlamaForCausalLM"], ["<s>"]) is None
    assert detect(None, [], []) is None


def test_the_reasoning_of_a_family_is_only_there_where_the_model_has_it() -> None:
    without = detect("<tool_call>{name}\n<arg_key>k</arg_key>", [], [])
    assert without is not None
    assert (without.name, without.thinking) == ("glm45", None)
    added = detect("<tool_call><function=f></tool_call><think></think>", [], [])
    assert added is not None
    assert added.name == "qwen3_coder"
    assert added.thinking is not None
    assert added.thinking.end == "</think>"


def test_the_markers_of_a_family_are_what_may_be_special_tokens() -> None:
    assert set(FAMILIES["qwen3"].markers) == {"<think>", "</think>", "<tool_call>", "</tool_call>"}
    assert set(FAMILIES["gpt_oss"].markers) == {
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|call|>",
        "<|end|>",
        "<|return|>",
    }
    assert "｜DSML｜" in FAMILIES["deepseek_v32"].markers
    assert set(FAMILIES["mistral"].markers) == {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}
    assert "]<]minimax[>[" in FAMILIES["minimax_m3"].markers
    assert {'<|"|>', "<|channel>", "<channel|>"} <= {*FAMILIES["gemma4"].markers}
    assert {"<|open|>", "<|close|>", "<|sep|>"} <= {*FAMILIES["kimi_k3"].markers}


def test_every_family_that_writes_calls_has_recorded_answers() -> None:
    assert set(RECORDED) == {name for name, family in FAMILIES.items() if family.calls}


def test_harmony_without_reasoning_split_off_keeps_its_channels() -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|>"
    one = parser("gpt_oss", reasoning=False, opened=True)
    assert not one.in_reasoning
    assert parsed(one, [text]) == [Content(text)]


def test_reasoning_of_every_piece_is_reasoning() -> None:
    one = parser("deepseek_r1", opened=True)
    assert one.push("Hm") == [Reasoning("Hm")]
    assert one.push("") == []
    assert one.push("\n") == [Reasoning("\n")]
    assert one.push("</think>") == []
    assert not one.in_reasoning
    assert one.push("\n") == []
    assert one.push("Yes") == [Content("Yes")]
