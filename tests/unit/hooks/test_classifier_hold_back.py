"""What a client sees of an output, and when, while classifiers judge it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.hooks.classifiers.classifier_set import Judgement
from tandem.hooks.classifiers.contract import ScoringContext
from tandem.hooks.classifiers.sequence_guard import Question, SequenceGuard, Step
from tandem.hooks.classifiers.settings import HoldBack
from tandem.hooks.piece import Piece

PASS = Judgement()
BLOCK = Judgement(blocked_by="c", replacement="instead")


def guard(
    hold_back: HoldBack, *, window: int = 2, blocks: bool = True, streaming: bool = True
) -> SequenceGuard:
    return SequenceGuard(
        hold_back=hold_back, window_tokens=window, blocks=blocks, streaming=streaming
    )


def piece(text: str, *token_ids: int) -> Piece:
    """With a token for each character unless it is said, and a log-probability for each token."""
    ids = token_ids or tuple(ord(character) for character in text)
    return Piece(text, ids, [-float(token_id) for token_id in ids] or None)


def shown(step: Step) -> str | None:
    return None if step.show is None else step.show.text


# --- none ----------------------------------------------------------------------------------------


@pytest.mark.promise("S4-110")
def test_none_lets_all_but_the_last_chunk_flow_and_a_block_replaces_that_one() -> None:
    it = guard("none")
    assert [shown(it.push(piece(text), False)) for text in ("a", "b")] == ["a", "b"]
    last = it.push(piece("c"), True)
    assert last.show is None
    assert not last.over
    assert last.ask == Question(text="abc", token_ids=[97, 98, 99], shown_chars=2, is_final=True)
    after = it.judged(BLOCK)
    assert after.over
    assert after.show == Piece("instead", ())
    assert it.blocked_by == "c"


def test_none_asks_about_a_last_chunk_that_is_empty_too() -> None:
    it = guard("none")
    it.push(piece("a"), False)
    ask = it.push(Piece("", ()), True).ask
    assert ask is not None
    assert ask.text == "a"
    assert shown(it.judged(BLOCK)) == "instead"


# --- all -----------------------------------------------------------------------------------------


@pytest.mark.promise("S4-111")
def test_all_shows_nothing_before_the_judgement() -> None:
    it = guard("all")
    for text in ("a", "b"):
        assert it.push(piece(text), False) == Step()
    last = it.push(piece("c"), True)
    assert last.show is None
    assert last.ask is not None
    assert last.ask.shown_chars == 0
    assert it.judged(PASS) == Step(show=piece("abc"), over=True)


@pytest.mark.promise("S4-103")
@pytest.mark.parametrize("hold_back", ["none", "window", "all"])
def test_without_streaming_the_replacement_is_the_whole_text(hold_back: HoldBack) -> None:
    it = guard(hold_back, streaming=False)
    for text in ("ab", "cd"):
        assert it.push(piece(text), False) == Step()
    assert it.push(piece("e"), True).show is None
    assert it.judged(BLOCK) == Step(show=Piece("instead", ()), over=True)


@pytest.mark.promise("S4-112")
@pytest.mark.parametrize("hold_back", ["none", "window", "all"])
def test_a_replacement_brings_no_token_ids_and_no_logprobs(hold_back: HoldBack) -> None:
    it = guard(hold_back, window=100)
    it.push(piece("a"), False)
    it.push(piece("b"), True)
    after = it.judged(BLOCK)
    assert after.show is not None
    assert list(after.show.token_ids) == []
    assert after.show.extras is None


def test_an_empty_replacement_shows_nothing() -> None:
    it = guard("all")
    it.push(piece("a"), True)
    assert it.judged(Judgement(blocked_by="c", replacement="")) == Step(over=True)


def test_after_the_end_nothing_is_shown_or_asked_any_more() -> None:
    it = guard("all")
    it.push(piece("a"), True)
    it.judged(BLOCK)
    assert it.push(piece("b"), False) == Step()
    assert it.judged(PASS) == Step()


# --- window --------------------------------------------------------------------------------------


def test_a_window_is_judged_over_all_text_so_far_and_only_then_shown() -> None:
    it = guard("window", window=2)
    assert it.push(piece("a"), False) == Step()
    first = it.push(piece("b"), False)
    assert first.ask == Question(text="ab", token_ids=[97, 98], shown_chars=0, is_final=False)
    assert it.judged(PASS) == Step(show=piece("ab"))
    it.push(piece("c"), False)
    second = it.push(piece("d"), False)
    assert second.ask is not None
    assert (second.ask.text, second.ask.shown_chars) == ("abcd", 2)


def test_what_comes_while_a_window_is_judged_waits_and_is_asked_about_next() -> None:
    it = guard("window", window=2)
    assert it.push(piece("ab"), False).ask is not None
    for text in ("c", "d", "e"):
        assert it.push(piece(text), False) == Step()
    after = it.judged(PASS)
    assert shown(after) == "ab"
    assert after.ask is not None
    assert after.ask.text == "abcde"
    assert shown(it.judged(PASS)) == "cde"


def test_text_that_came_without_token_ids_fills_a_window_too() -> None:
    it = guard("window", window=2)
    it.push(Piece("x", ()), False)
    assert it.push(Piece("y", ()), False).ask is not None


# --- annotating ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hold_back", ["none", "window", "all"])
@pytest.mark.parametrize("streaming", [True, False])
def test_where_nothing_can_block_only_the_finish_waits(
    hold_back: HoldBack, streaming: bool
) -> None:
    it = guard(hold_back, window=1, blocks=False, streaming=streaming)
    assert it.push(piece("a"), False) == Step(show=piece("a"))
    last = it.push(piece("b"), True)
    assert shown(last) == "b"
    assert last.ask is not None
    assert last.ask.text == "ab"
    assert not last.over
    assert it.judged(BLOCK) == Step(over=True)


# --- what classifiers are given ------------------------------------------------------------------


def test_a_question_becomes_the_context_of_its_output() -> None:
    base = ScoringContext(
        request_id="r", prompt="p", generated_text="", request_metadata={"model": "m"}
    )
    window = Question(text="ab", token_ids=[1, 2], shown_chars=0, is_final=False)
    context = window.context(base, finish_reason="stop")
    assert (context.generated_text, context.output_token_ids) == ("ab", [1, 2])
    assert context.finish_reason == ""
    assert context.request_metadata == {"model": "m", "is_final": False, "shown_chars": 0}
    final = Question(text="ab", token_ids=[1, 2], shown_chars=0, is_final=True)
    assert final.context(base, finish_reason="length").finish_reason == "length"
    assert base.request_metadata == {"model": "m"}


# --- any chunks, any judgements, any timing ------------------------------------------------------


@dataclass
class Client:
    """What one client has got."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    extras: list[Any] = field(default_factory=list)
    over: bool = False

    def take(self, step: Step) -> None:
        assert not self.over
        if step.show is not None:
            self.text += step.show.text
            self.token_ids += step.show.token_ids
            self.extras += step.show.extras or ()
        self.over = step.over


PIECES = st.lists(st.text(alphabet="abcdé", max_size=3), min_size=1, max_size=12)


@given(
    texts=PIECES,
    hold_back=st.sampled_from(["none", "window", "all"]),
    window=st.integers(1, 6),
    streaming=st.booleans(),
    blocks_from=st.none() | st.integers(0, 30),
    answer_after=st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
def test_whatever_the_timing_nothing_unjudged_or_blocked_is_shown(
    texts: list[str],
    hold_back: HoldBack,
    window: int,
    streaming: bool,
    blocks_from: int | None,
    answer_after: list[int],
) -> None:
    """A classifier that blocks every text longer than `blocks_from`, and answers some pushes
    later. What passed is shown whole, in order, in every channel; what did not, in none.
    """
    it = guard(hold_back, window=window, streaming=streaming)
    client, open_question, wait = Client(), None, 0
    delays = iter(answer_after)
    judged_to = 0

    def follow(step: Step) -> None:
        nonlocal open_question, wait
        client.take(step)
        if step.ask is not None:
            assert open_question is None
            open_question, wait = step.ask, next(delays, 0)

    def answer() -> None:
        nonlocal open_question, judged_to
        asked, open_question = open_question, None
        assert asked is not None
        assert asked.shown_chars == len(client.text)
        assert whole.startswith(asked.text)
        assert asked.token_ids == [ord(character) for character in asked.text]
        blocked = blocks_from is not None and len(asked.text) > blocks_from
        if not blocked:
            judged_to = len(asked.text)
        follow(it.judged(BLOCK if blocked else PASS))

    whole = "".join(texts)
    for place, text in enumerate(texts):
        if client.over:
            break
        follow(it.push(piece(text), place == len(texts) - 1))
        if hold_back != "none" or not streaming:
            assert len(client.text) <= judged_to
        wait -= 1
        while open_question is not None and wait < 0:
            answer()
    while open_question is not None:
        answer()

    assert client.over
    passed = client.text.removesuffix("instead") if it.blocked_by else client.text
    assert whole.startswith(passed)
    assert client.token_ids == [ord(character) for character in passed]
    assert client.extras == [-float(ord(character)) for character in passed]
    if it.blocked_by is None:
        assert client.text == whole
    elif hold_back != "none" or not streaming:
        assert blocks_from is not None
        assert len(passed) <= blocks_from
    if not streaming:
        assert client.text in (whole, "instead")
