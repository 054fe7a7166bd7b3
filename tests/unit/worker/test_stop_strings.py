"""Stop strings cut where they are first complete, however the text was split."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_model import bytes_of, held_from, reference, run

from tandem.text.tokenizer import Tokenizer

LETTERS = st.text("abc é☃", max_size=24)
STOPS = st.lists(st.text("abc é☃", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(deadline=None, max_examples=400)
@given(text=LETTERS, stops=STOPS, data=st.data())
def test_what_is_shown_equals_the_model_for_any_split(
    tokenizer: Tokenizer, text: str, stops: list[str], data: st.DataObject
) -> None:
    chunks = data.draw(bytes_of(text))
    outcome = run(tokenizer, chunks, stops=stops)
    assert outcome.pieces == reference(chunks, stops=stops).pieces
    assert outcome.stop_reason == reference(chunks, stops=stops).stop_reason


@settings(deadline=None, max_examples=300)
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


@pytest.mark.promise("S0-037")
def test_the_hook_sees_text_that_is_already_cut(tokenizer: Tokenizer) -> None:
    outcome = run(tokenizer, [b"kept S", b"TOP gone"], stops=["STOP"], verdicts=[])
    assert [call.text_diff for call in outcome.calls] == ["kept ", ""]
    assert [call.text for call in outcome.calls] == ["kept ", "kept "]
    assert [call.is_final for call in outcome.calls] == [False, True]
    assert b"".join(bytes(call.token_ids_diff) for call in outcome.calls) == b"kept "


def test_held_text_is_the_longest_possible_beginning() -> None:
    assert held_from("xxaba", ["abab", "ba!"]) == 2
    assert held_from("xx", ["ab"]) == 2
