"""The whole output pipeline against its model: any text, any split, any stop strings, any
verdicts.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_model import bytes_of, reference, run

from tandem.hooks.contract import Verdict, emit, suppress, terminate
from tandem.text.tokenizer import Tokenizer

TEXT = st.text("ab END é☃😀", max_size=30)
VERDICTS = st.lists(
    st.one_of(
        st.text("xy☃", max_size=3).map(emit),
        st.just(suppress()),
        st.sampled_from([terminate("guard"), emit(""), emit("same")]),
    ),
    max_size=8,
)


@pytest.mark.promise("S0-008", "S0-011", "S0-012", "S0-013", "S0-018", "S0-030")
@settings(max_examples=500)
@given(
    text=TEXT, verdicts=VERDICTS, stops=st.sampled_from([[], ["END"], ["b ", "é☃"]]), data=st.data()
)
def test_every_run_equals_the_model(
    tokenizer: Tokenizer,
    text: str,
    verdicts: list[Verdict],
    stops: list[str],
    data: st.DataObject,
) -> None:
    chunks = data.draw(bytes_of(text))
    outcome = run(tokenizer, chunks, stops=stops, verdicts=verdicts)
    expected = reference(chunks, stops=stops, verdicts=verdicts)
    assert outcome.pieces == expected.pieces
    assert outcome.stop_reason == expected.stop_reason


@pytest.mark.promise("S0-006")
@given(text=TEXT, data=st.data())
def test_a_hook_that_passes_everything_changes_nothing(
    tokenizer: Tokenizer, text: str, data: st.DataObject
) -> None:
    chunks = data.draw(bytes_of(text))
    without, with_hook = run(tokenizer, chunks), run(tokenizer, chunks, verdicts=[])
    assert with_hook.pieces == without.pieces
    assert with_hook.ids == without.ids
    assert "".join(without.pieces) == text


@pytest.mark.promise("S0-022", "S0-023")
@given(text=TEXT, verdicts=VERDICTS, data=st.data())
def test_there_is_one_final_call_and_diffs_add_up_to_the_text(
    tokenizer: Tokenizer, text: str, verdicts: list[Verdict], data: st.DataObject
) -> None:
    calls = run(tokenizer, data.draw(bytes_of(text)), verdicts=verdicts).calls
    assert [call.is_final for call in calls] == [False] * (len(calls) - 1) + [True]
    for number, call in enumerate(calls, 1):
        assert call.text == "".join(earlier.text_diff for earlier in calls[:number])


@pytest.mark.promise("S0-038")
@given(text=TEXT, verdicts=VERDICTS, data=st.data())
def test_withheld_tokens_count_as_generated(
    tokenizer: Tokenizer, text: str, verdicts: list[Verdict], data: st.DataObject
) -> None:
    chunks = data.draw(bytes_of(text))
    outcome = run(tokenizer, chunks, verdicts=verdicts)
    assert outcome.completion_tokens == sum(map(len, chunks[: len(outcome.pieces)]))


@pytest.mark.promise("S0-009")
def test_emit_rewrites_the_text_and_leaves_the_models_tokens(tokenizer: Tokenizer) -> None:
    outcome = run(tokenizer, [b"ab", b"cd"], verdicts=[emit("X")])
    assert outcome.pieces == ["X", "cd"]
    assert outcome.ids == outcome.logprobs == [list(b"ab"), list(b"cd")]


@pytest.mark.promise("S0-010")
def test_suppress_withholds_every_channel(tokenizer: Tokenizer) -> None:
    outcome = run(tokenizer, [b"ab", b"cd"], verdicts=[suppress(), suppress()])
    assert outcome.pieces == ["", ""]
    assert outcome.ids == outcome.logprobs == [[], []]


@pytest.mark.promise("S0-017")
def test_a_phrase_over_two_chunks_shows_only_what_came_before_the_second(
    tokenizer: Tokenizer,
) -> None:
    outcome = run(tokenizer, [b"a forb", b"idden"], verdicts=[emit("a forb"), terminate("phrase")])
    assert outcome.pieces == ["a forb", ""]
    assert outcome.stop_reason == "phrase"
