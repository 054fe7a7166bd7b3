"""Stop strings cut where they are first complete, however the text was split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_case import one_case
from pipeline_model import bytes_of, held_from, reference, run

from tandem.text.stop_strings import StopStrings, Token
from tandem.text.thoughts import ThoughtMarks
from tandem.text.tokenizer import Tokenizer

LETTERS = st.text("abc é☃", max_size=24)
STOPS = st.lists(st.text("abc é☃", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=400)
@given(text=LETTERS, stops=STOPS, data=st.data())
def test_what_is_shown_equals_the_model_for_any_split(
    tokenizer: Tokenizer, text: str, stops: list[str], data: st.DataObject
) -> None:
    chunks = data.draw(bytes_of(text))
    outcome = run(tokenizer, chunks, stops=stops)
    assert outcome.pieces == reference(chunks, stops=stops).pieces
    assert outcome.stop_reason == reference(chunks, stops=stops).stop_reason


@settings(max_examples=300)
@given(text=LETTERS, stops=STOPS, data=st.data())
def test_token_ids_and_logprobs_never_show_more_than_the_text(
    tokenizer: Tokenizer, text: str, stops: list[str], data: st.DataObject
) -> None:
    chunks = data.draw(bytes_of(text))
    outcome = run(tokenizer, chunks, stops=stops)
    tokens = [value for chunk in chunks for value in chunk]
    shown = b"".join(map(bytes, outcome.ids))
    assert "".join(outcome.pieces).encode().startswith(shown)
    assert list(shown) == tokens[: len(shown)]
    assert outcome.logprobs == outcome.ids
    if outcome.stop_reason == "":
        assert list(shown) == tokens


def test_a_stop_string_over_several_chunks_never_shows(tokenizer: Tokenizer) -> None:
    outcome = run(tokenizer, [b"one E", b"N", b"D two"], stops=["END"])
    assert outcome.pieces == ["one ", "", ""]
    assert outcome.stop_reason == "END"


def test_what_only_looked_like_a_stop_string_is_shown(tokenizer: Tokenizer) -> None:
    outcome = run(tokenizer, [b"one E", b"N", b"E"], stops=["END"])
    assert outcome.pieces == ["one ", "", "ENE"]
    assert outcome.stop_reason == ""


def test_the_string_that_is_complete_first_wins(tokenizer: Tokenizer) -> None:
    for chunks in ([b"xabcd"], [b"xab", b"cd"], [b"x", b"a", b"b", b"c", b"d"]):
        outcome = run(tokenizer, chunks, stops=["abcd", "bc"])
        assert ("".join(outcome.pieces), outcome.stop_reason) == ("xa", "bc")


def test_held_text_is_the_longest_possible_beginning() -> None:
    assert held_from("xxaba", ["abab", "ba!"]) == 2
    assert held_from("xx", ["ab"]) == 2


# --- thoughts ---

THINK = ThoughtMarks("<think>", "</think>", silent=("<answer>",))
OPENED = THINK._replace(opened=True)


def shown(text: str, *stops: str, marks: ThoughtMarks, least: int = 0) -> tuple[str, str | None]:
    """What is shown of a text whose characters come one by one, and the stop string that was met:
    the same as where they come at once.
    """
    found = []
    for pieces in (list(text), [text]):
        strings = StopStrings(stops, least=least if len(pieces) > 1 else 0, thoughts=marks)
        out = ""
        for place, piece in enumerate(pieces):
            if strings.matched is None:
                end = strings.token_end(piece, incomplete=False)
                out += strings.push(Token(place, None, end), piece)
        if strings.matched is None:
            out += strings.push(None, "")
        if strings.matched is None:
            out += strings.flush()
        found.append((out, strings.matched))
    assert least or found[0] == found[1]
    return found[0]


@pytest.mark.promise("S1-304")
@one_case(
    ("marks", "text", "kept"),
    [
        (OPENED, "a.b</think>c", "a.b</think>c"),
        (OPENED, "a.b</think>c.d", "a.b</think>c"),
        (OPENED, "a.b", "a.b"),
        (OPENED, "a.</thin.", "a.</thin."),
        (THINK, "<think>a.b</think>c.d", "<think>a.b</think>c"),
        (THINK, " \n<think>a.b</think>c.d", " \n<think>a.b</think>c"),
        (THINK, "a.b", "a"),
        (THINK, "<thin.", "<thin"),
        (THINK, "a <think>b.c</think>", "a <think>b"),
        (THINK, "<think>a.</think>\n<think>b.</think>c.d", "<think>a.</think>\n<think>b.</think>c"),
        (THINK, "<answer><think>a.</think>b.", "<answer><think>a.</think>b"),
        (THINK, "a<answer>\n<think>b.</think>c.", "a<answer>\n<think>b.</think>c"),
        (THINK, "<think>a.</think>b</think>.", "<think>a.</think>b</think>"),
    ],
)
def test_a_stop_string_counts_outside_of_thoughts_alone(
    marks: ThoughtMarks, text: str, kept: str
) -> None:
    assert shown(text, ".", marks=marks) == (kept, None if kept == text else ".")


@pytest.mark.promise("S1-304")
def test_space_behind_a_thought_is_no_content_that_a_stop_string_could_end() -> None:
    text = "Hm.\n\n</think>\n\nWell.\n\nNext"
    assert shown(text, "\n\n", marks=OPENED) == ("Hm.\n\n</think>\n\nWell.", "\n\n")
    assert shown("\n\nWell", "\n\n", marks=THINK) == ("", "\n\n")


def test_space_alone_is_an_answer_that_a_stop_string_ends() -> None:
    strings = StopStrings(["\n"], thoughts=THINK)
    shown = strings.push(Token(0, None, 101), " " * 100 + "\n")
    assert (shown, strings.matched) == (" " * 100, "\n")


def test_a_stop_string_spans_no_thought() -> None:
    assert shown("</th</think>ink>", "</think>", marks=OPENED) == ("</th</think>ink>", None)
    assert shown("x<think>ab</think>", "xb", marks=OPENED) == ("x<think>ab</think>", None)


def test_min_tokens_count_while_a_thought_is_still_possible() -> None:
    found = [shown("<t.x.y.", ".", marks=THINK, least=each)[0] for each in range(8)]
    assert found == ["<t", "<t", "<t", "<t.x", "<t.x", "<t.x.y", "<t.x.y", "<t.x.y."]
