"""What is thought, and what is done: calls within reasoning, in prose, and ends without a
beginning."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from one_case import one_case
from parsed_answers import check_cuts, parsed, parser, plain
from recorded_answers import ONE, RECORDED, TWO

from tandem_answers.parsing.families import FAMILIES, detect
from tandem_frontend.openai.answer_parsers import Content, Reasoning

ENDED_BY_CALLS = [name for name in RECORDED if FAMILIES[name].call_ends_thought]
THINKING = [name for name, recorded in RECORDED.items() if recorded.opens[0]]
SPACED = [name for name in THINKING if name != "gpt_oss"]
"""Those whose reasoning ends with a marker of its own."""
TELLING = [name for name in SPACED if RECORDED[name].opens[1] not in FAMILIES[name].silent]
"""Those in whose answers that marker tells of reasoning before it, and of nothing else."""


def without(text: str, marks: Iterable[str]) -> str:
    for mark in marks:
        text = text.replace(mark, "")
    return text


def called(family: str) -> str:
    """A call of the family in its section, without the markers of content."""
    return without(RECORDED[family].one, FAMILIES[family].silent)


def bare(family: str) -> str:
    """A call of the family, without the section around it."""
    return without(called(family), FAMILIES[family].sections)


@pytest.mark.promise("S5-628")
@pytest.mark.parametrize("whole", [False, True], ids=["stream", "body"])
@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("family", [name for name in ENDED_BY_CALLS if name in THINKING])
def test_a_call_that_is_only_thought_about_is_not_made(
    family: str, opened: bool, whole: bool
) -> None:
    begin, end = RECORDED[family].opens
    text = f"{'' if opened else begin}draft: {bare(family)} no.\n{end}\n\nI will not do it."
    thought = [f"draft: {bare(family)} no.\n"]
    asked = {"opened": opened, "unmarked": not opened, "whole": whole}
    check_cuts(family, text, [thought, "I will not do it."], **asked)
    check_cuts(family, f"{text}{RECORDED[family].two}", [thought, "I will not do it.", *TWO],
               every=9, **asked)  # fmt: skip


@pytest.mark.parametrize("family", [name for name in ENDED_BY_CALLS if name in THINKING])
def test_a_thought_that_a_call_ends_has_no_end_marker(family: str) -> None:
    begin, end = RECORDED[family].opens
    text = f"So I call: {called(family)}"
    check_cuts(family, text, [["So I call: "], *ONE], opened=True)
    check_cuts(family, f"{text}\n{begin}Again.{end}Well.",
               [["So I call: "], *ONE, ["Again."], "Well."], every=5, opened=True)  # fmt: skip


def test_a_call_that_broke_within_a_thought_counts_for_nothing() -> None:
    one = parser("qwen3", opened=True)
    text = '<tool_call>{"name": "now", "arguments": {"a": [1, }}</tool_call> no.'
    assert parsed(one, [f"{text}</think> So."]) == [Reasoning(text), Content("So.")]
    assert (one.calls, one.broken, one.cut) == (0, 0, frozenset())


@pytest.mark.promise("S5-628")
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_may_be_thought_is_held_no_longer_than_may_be(size: int) -> None:
    """Behind that it is no thought any more, and an end marker is not shown."""
    call = RECORDED["qwen3"].one
    for more in (-1, 0, 1):
        one = parser("qwen3", opened=True, most_held=200)
        filler = "x" * (200 + more - len(call) - len("</think>"))
        text = f"{call}{filler}</think>Well."
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        expected = [*ONE, f"{filler}Well."] if more > 0 else [[call + filler], "Well."]
        said = plain(parsed(one, pieces))
        assert "".join(map(str, said)) == "".join(map(str, expected))
    assert parser("qwen3", opened=True, most_held=200).push(call + "x" * 200)


def test_models_that_are_told_by_their_calls_end_thoughts_by_calls() -> None:
    coder = detect("<tool_call><function=f></tool_call><think>", (), ())
    assert coder is not None
    one = parser(coder, opened=True)
    assert plain(parsed(one, ["So. ", RECORDED["qwen3_coder"].one])) == [["So. "], *ONE]


@one_case("family", SPACED)
def test_space_behind_a_thought_is_no_content(family: str) -> None:
    begin, end = RECORDED[family].opens
    check_cuts(family, f"{begin}Hm.\n{end}\n\n Yes.\n", [["Hm.\n"], "Yes.\n"])
    check_cuts(family, f"{begin}Hm.\n{end}\n\n", [["Hm.\n"]])


# --- an end without a beginning ---


@pytest.mark.promise("S5-628")
@one_case("family", TELLING)
def test_what_comes_before_an_end_without_a_beginning_is_thought(family: str) -> None:
    _, end = RECORDED[family].opens
    text = f"Hm, I think.\n{end}\n\nYes.{end}"
    check_cuts(family, text, [["Hm, I think.\n"], f"Yes.{end}"], unmarked=True, whole=True)
    check_cuts(family, text, [f"Hm, I think.\n\n\nYes.{end}"], unmarked=True)
    check_cuts(family, text, [text])


@one_case("family", SPACED)
def test_an_answer_that_is_seen_at_its_end_is_what_it_is_without_a_thought(family: str) -> None:
    begin, end = RECORDED[family].opens
    for text in (f"Well, 1.\n{RECORDED[family].two}\n", f"{begin}Hm.{end}Yes.", " \n", ""):
        expected = plain(parsed(parser(family), [text]))
        check_cuts(family, text, expected, every=5, unmarked=True, whole=True)


# --- prose ---

FENCED = "```xml\n{}\n```\nThat is how it looks."


@pytest.mark.promise("S5-629")
@pytest.mark.parametrize(
    ("family", "call"),
    [
        ("minimax_m2", bare("minimax_m2")),
        ("lfm2", bare("lfm2")),
        ("phi4_mini", 'functools[{"name": "now", "arguments": {}}]'),
        ("llama4", '[{"name": "now", "parameters": {}}]'),
    ],
)
@pytest.mark.parametrize("prose", ["Such as {} here.", FENCED], ids=["inline", "fenced"])
def test_a_call_in_prose_is_not_made(family: str, call: str, prose: str) -> None:
    text = prose.format(call)
    check_cuts(family, text, [text])


@pytest.mark.parametrize(
    "section",
    ["<minimax:tool_call>{}</minimax:tool_call>", "<minimax:tool_call>I call:{}", "{0}\n{0}"],
)
def test_calls_of_minimax_are_made_in_their_section_alone(section: str) -> None:
    text = section.format(bare("minimax_m2").strip())
    made = plain(parsed(parser("minimax_m2"), [text]))
    assert [each for each in made if not isinstance(each, str)] == ONE * ("minimax:" in section)


def test_llama_4_may_call_in_json() -> None:
    one = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
    text = f'[{one}, {{"name": "add", "parameters": {{"a": 3}}}}]'
    check_cuts("llama4", text, [*ONE, ("add", {"a": 3})])


# --- harmony's headers ---


@one_case("channel", ["final", "commentary"])
@one_case(
    "between", ["", " ", " <|constrain|>json", "<|constrain|> JSON ", " json", " x <|constrain|>y"]
)
def test_a_header_of_harmony_is_not_shown(channel: str, between: str) -> None:
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        f'<|channel|>{channel}{between}<|message|>{{"a": 1}}<|return|>'
    )
    check_cuts("gpt_oss", text, [["Hm."], '{"a": 1}'])


def test_a_header_of_harmony_that_is_none_is_text() -> None:
    for text in ("<|channel|>final two words<|message|>x", "<|channel|>final json"):
        check_cuts("gpt_oss", text, [text])
