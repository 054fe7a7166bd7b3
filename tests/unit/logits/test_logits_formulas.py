"""Each ready-made processor does what its formula says, on both kinds of row."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logits_bench import EOS, MODEL, Given, Library, edited, generate, plain, rows, state_of

from tandem.logits import TokenHistory
from tandem.logits.arrays import like
from tandem.logits.ready import watermark
from tandem.logits.ready.watermark import WatermarkDetector
from tandem.logits.rows import apply_rows

MARKER = MODEL.encode("</think>")


def test_a_forced_sequence_is_followed_by_the_models_end_or_the_one_given(
    library: Library,
) -> None:
    text = "Hello world!"
    assert generate(state_of(("forced_sequence", {"text": text})), library) == [
        *MODEL.encode(text),
        EOS,
    ]
    ends = state_of(("forced_sequence", {"token_ids": [70], "eos_token_id": 9}))
    assert generate(ends, library, steps=4) == [70, 9, 9, 9]


def test_a_forced_prefix_leaves_what_follows_to_the_model(library: Library) -> None:
    prefix = MODEL.encode("Sure, here")
    free = generate(state_of(("bias", {"bias": {"0": 0}})), library)
    assert generate(state_of(("forced_prefix", {"text": "Sure, here"})), library) == (
        prefix + free[len(prefix) :]
    )


def test_only_allowed_tokens_and_the_end_remain(library: Library) -> None:
    row, before = edited(state_of(("allowed_tokens", {"token_ids": [70, 71]})), library, [1], [])
    assert numpy.flatnonzero(numpy.isfinite(row)).tolist() == sorted([70, 71, EOS])
    assert (row[[70, 71]] == before[[70, 71]]).all()
    closed = state_of(("allowed_tokens", {"token_ids": [70], "with_eos": False}))
    assert generate(closed, library, steps=3) == [70] * 3


def test_banned_tokens_alone_are_lost(library: Library) -> None:
    row, before = edited(state_of(("banned_tokens", {"token_ids": [70, 71]})), library, [1], [])
    assert numpy.flatnonzero(~numpy.isfinite(row)).tolist() == [70, 71]
    rest = numpy.delete(row, [70, 71])
    assert (rest == numpy.delete(before, [70, 71])).all()


def test_a_banned_sequence_cannot_be_completed_but_its_parts_may_come(library: Library) -> None:
    banned = state_of(("banned_sequences", {"sequences": [[70, 71, 72], [80]]}))
    for generated, lost in (([], [80]), ([70], [80]), ([70, 71], [72, 80]), ([71], [80])):
        row, _ = edited(banned, library, [70, 71], generated)
        assert numpy.flatnonzero(~numpy.isfinite(row)).tolist() == lost


def test_a_banned_text_is_not_spelled_with_or_without_a_space() -> None:
    banned = state_of(("banned_sequences", {"texts": ["statement"]}))
    for text in ("statement", " statement"):
        *beginning, last = MODEL.encode(text)
        row, _ = edited(banned, "numpy", [1], beginning)
        assert row[last] == -math.inf


def test_a_bias_is_added(library: Library) -> None:
    row, before = edited(state_of(("bias", {"bias": {"7": 2.5, "9": -1}})), library, [1], [])
    changed = row - before
    assert numpy.flatnonzero(changed).tolist() == [7, 9]
    assert changed[[7, 9]] == pytest.approx([2.5, -1.0], abs=1e-5)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_the_end_comes_not_before_the_least_and_not_after_the_most(
    library: Library, count: int
) -> None:
    eager = ("bias", {"bias": {str(EOS): 1000.0}})
    assert len(generate(state_of(eager, ("min_new_tokens", {"count": count})), library)) == (
        count + 1
    )
    most = generate(state_of(("max_new_tokens", {"count": count})), library)
    assert len(most) == count + 1
    assert most[-1] == EOS


def test_the_repetition_penalty_is_keskars(library: Library) -> None:
    penalty = 1.7
    state = state_of(("repetition_penalty", {"penalty": penalty}))
    row, before = edited(state, library, [3, 4, 4], [9])
    for token in (3, 4, 9):
        value = before[token]
        assert row[token] == pytest.approx(
            value / penalty if value > 0 else value * penalty, rel=1e-5
        )
    assert (numpy.delete(row, [3, 4, 9]) == numpy.delete(before, [3, 4, 9])).all()
    answer_only = state_of(("repetition_penalty", {"penalty": penalty, "prompt": False}))
    row, before = edited(answer_only, library, [3, 4, 4], [9])
    assert numpy.flatnonzero(row != before).tolist() == [9]


@given(tokens=st.lists(st.integers(3, 6), min_size=1, max_size=40), size=st.integers(1, 4))
@settings(max_examples=60)
def test_no_ngram_comes_twice_whatever_came_before(tokens: list[int], size: int) -> None:
    state = state_of(("no_repeat_ngram", {"size": size}))
    for length in range(len(tokens) + 1):
        past = tokens[:length]
        row, _ = edited(state, "numpy", past[:2], past[2:])
        grams = {tuple(past[at : at + size]) for at in range(len(past) - size + 1)}
        ending = tuple(past[len(past) - size + 1 :])
        for token in range(3, 7):
            repeats = len(past) >= size - 1 and (*ending, token) in grams
            assert math.isinf(row[token]) is repeats


def test_a_temperature_schedule_is_linear_between_its_points(library: Library) -> None:
    state = state_of(("temperature_schedule", {"points": [[2, 1.0], [6, 3.0]]}))
    for position, temperature in ((0, 1.0), (2, 1.0), (3, 1.5), (5, 2.5), (6, 3.0), (9, 3.0)):
        row, before = edited(state, library, [1], [4] * position)
        assert row == pytest.approx(before / temperature, rel=1e-5)


@pytest.mark.parametrize("budget", [0, 3])
def test_reasoning_ends_at_its_budget_and_is_left_alone_after(
    library: Library, budget: int
) -> None:
    free = generate(state_of(("bias", {"bias": {"0": 0}})), library)
    bounded = state_of(("thinking_budget", {"budget": budget, "end_text": "</think>"}))
    expected = free[:budget] + MARKER + free[budget + len(MARKER) :]
    assert generate(bounded, library) == expected


def test_a_marker_that_the_model_has_begun_is_completed_and_not_repeated() -> None:
    bounded = state_of(("thinking_budget", {"budget": 3, "end_token_ids": [90, 91, 92]}))
    row, _ = edited(bounded, "numpy", [1], [5, 90, 91])
    assert numpy.flatnonzero(numpy.isfinite(row)).tolist() == [92]


@pytest.mark.parametrize(
    ("text", "ends"),
    [("It is so.", True), ("It is so", False), ('He said "no!"', True), ("Well?  ", True)],
)
def test_a_sentence_that_ended_ends_the_answer(text: str, ends: bool) -> None:
    tokens = MODEL.encode(text)
    row, _ = edited(state_of(("stop_at_sentence", {"after": 1})), "numpy", [1], tokens)
    assert (numpy.flatnonzero(numpy.isfinite(row)).tolist() == [EOS]) is ends
    later = state_of(("stop_at_sentence", {"after": len(tokens) + 1}))
    row, _ = edited(later, "numpy", [1], tokens)
    assert numpy.isfinite(row).all()


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_is_one_of_the_choices(library: Library, seed: int) -> None:
    texts = ["yes", "no", "not at all", "not"]
    answer = generate(state_of(("choice", {"texts": texts})), library, seed=seed)
    assert answer[-1] == EOS
    assert MODEL.decode(answer) in texts


def test_a_choice_that_begins_another_may_end_or_go_on() -> None:
    choice = state_of(("choice", {"token_ids": [[70], [70, 71]]}))
    row, _ = edited(choice, "numpy", [1], [70])
    assert numpy.flatnonzero(numpy.isfinite(row)).tolist() == sorted([71, EOS])


def test_a_watermark_is_found_by_its_key_alone(library: Library) -> None:
    """z of a text without one is about 0; 200 tokens with delta 4 are far beyond chance."""
    marked = generate(state_of(("watermark", {"key": "k", "delta": 4.0})), library, steps=200)
    plain = generate(state_of(("bias", {"bias": {str(EOS): -100}})), library, steps=200)
    detector = WatermarkDetector(key="k", vocabulary=MODEL.vocabulary)
    stranger = WatermarkDetector(key="other", vocabulary=MODEL.vocabulary)
    assert detector.detect(marked).z > 8
    assert detector.detect(marked).p_value < 1e-12
    assert abs(detector.detect(plain).z) < 4
    assert abs(stranger.detect(marked).z) < 4


def test_the_green_share_is_gamma_and_depends_on_what_came_before() -> None:
    share, gamma = [], 0.3
    for last in range(40):
        row, before = edited(
            state_of(("watermark", {"key": "k", "gamma": gamma, "delta": 1.0})),
            "numpy",
            [1],
            [last + 3],
        )
        raised = row - before
        assert numpy.isclose(raised, 0, atol=1e-5).sum() + numpy.isclose(raised, 1, atol=1e-5).sum()
        share.append(frozenset(numpy.flatnonzero(raised > 0.5).tolist()))
    assert len(set(share)) == 40
    mean = sum(map(len, share)) / len(share) / MODEL.vocabulary
    assert mean == pytest.approx(gamma, abs=0.01)


def test_the_green_lists_of_a_step_travel_together(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two arrays, whatever the number of rows: the lists, and what their tokens gain."""
    sent: list[Any] = []
    monkeypatch.setattr(
        watermark, "like", lambda rows, array: sent.append(array) or like(rows, array)
    )
    given = [{"key": "k", "width": width, "delta": width / 3} for width in (1, 2, 16, 1)]
    states = [state_of(("watermark", args)) for args in given]
    past, together = TokenHistory((5, 6, 7), [9]), rows(library, len(given))
    assert apply_rows(states, [past] * len(given), together) == [None] * len(given)
    assert len(sent) == 2
    for place, args in enumerate(given):
        row = rows(library, len(given))[place]
        before = plain(row)
        assert state_of(("watermark", args)).apply(past, row) is None
        assert numpy.array_equal(plain(together[place]), plain(row))
        assert (args["width"] == 16) == numpy.array_equal(before, plain(row))


def test_a_repeated_run_proves_a_watermark_once() -> None:
    detector = WatermarkDetector(key="k", vocabulary=100)
    assert detector.detect([1, 2] * 50).scored == 2
    with pytest.raises(ValueError, match="too few"):
        detector.detect([1])


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        (("regex", {"pattern": "(yes|no) [0-9]{3}"}), "(yes|no) [0-9]{3}"),
        (("ebnf", {"grammar": 'root ::= "a" | "bc" "d"?'}), "a|bcd?"),
        (("json_schema", {"schema": {"enum": [7, "red"]}}), '7|"red"'),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_a_sentence_of_its_grammar(given: Given, fits: str, seed: int) -> None:
    answer = generate(state_of(given), "numpy", seed=seed)
    assert answer[-1] == EOS
    assert re.fullmatch(fits, MODEL.decode(answer))


def test_tokens_that_do_not_fit_a_grammar_end_their_own_row(library: Library) -> None:
    states = [state_of(("regex", {"pattern": "[0-9]+"})) for _ in range(3)]
    digits, letters = MODEL.encode("12"), MODEL.encode("ab")
    histories = [TokenHistory([5], past) for past in (digits, letters, digits)]
    batch = rows(library, 3)
    errors = apply_rows(states, histories, batch)
    assert [error is None for error in errors] == [True, False, True]
    assert numpy.array_equal(numpy.isfinite(plain(batch)[0]), numpy.isfinite(plain(batch)[2]))
