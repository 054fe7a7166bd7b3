"""A sequence ends with its first stop word, in whatever pieces its tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_harness import Bench, ids_of

from tandem.engine.base import Delta, Ending
from tandem.text.stop_strings import StopStrings
from tandem.text.stop_words import StopWords, StopWordTable
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2
from tandem.worker.core.output import SequenceOutput
from tandem.worker.task_checks import MOST_STOP_WORDS_TOKENS

TOKENS = st.lists(st.integers(10, 13), max_size=24)
WORDS = st.lists(st.lists(st.integers(10, 13), min_size=1, max_size=5), min_size=1, max_size=5)
IDS = {"want_token_ids": True}


def words_of(*words: Sequence[int]) -> list[common_pb2.StopWord]:
    return [common_pb2.StopWord(token_id=word) for word in words]


def first_word(tokens: list[int], words: list[list[int]]) -> tuple[int, tuple[int, ...]]:
    """Up to where the first word comes, and the longest that ends there; 0: none comes."""
    for end in range(1, len(tokens) + 1):
        ended = [word for word in words if tokens[:end][-len(word) :] == word]
        if ended:
            return end, tuple(max(ended, key=len))
    return 0, ()


@settings(max_examples=500)
@given(tokens=TOKENS, words=WORDS, data=st.data())
def test_the_first_word_ends_a_sequence_for_any_split(
    tokens: list[int], words: list[list[int]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=6)))
    output = SequenceOutput(detokenizer=None, words=StopWords(StopWordTable(words)))
    end, word = first_word(tokens, words)
    shown: list[int] = []
    for begin, until in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        last = Ending.LENGTH if until == len(tokens) else None
        shown += output.cut(Delta(1, tokens[begin:until], last)).token_ids
        if output.cut_end is not None:
            break
    assert output.cut_end is not None
    assert output.cut_end.stop_tokens == word
    assert output.cut_end.reason == ("stop" if word else "length")
    assert shown == (tokens[:end] if word else tokens)
    assert output.completion_tokens == len(shown)


def test_a_table_is_shared_and_each_sequence_has_its_own_place() -> None:
    table = StopWordTable([[10, 11], [10, 10, 12], [11]])
    assert table.states == 6
    one, other = StopWords(table), StopWords(table)
    assert (one.push([10]), other.push([10, 10])) == (0, 0)
    assert (one.push([11]), one.matched) == (1, (10, 11))
    assert (other.push([12]), other.matched) == (1, (10, 10, 12))


def test_an_unfinished_character_ends_with_the_word(tokenizer: Tokenizer) -> None:
    begun = ids_of(tokenizer, "☃")[:1]
    for stops in (None, StopStrings(["never"])):
        words = StopWords(StopWordTable([begun]))
        output = SequenceOutput(detokenizer=tokenizer.detokenizer(), stops=stops, words=words)
        assert output.cut(Delta(1, [*begun, 20])).text == "\ufffd"


@pytest.mark.parametrize("sampling", [{}, {"stop_token_ids": [20]}])
def test_a_sequence_without_stop_words_takes_the_straight_way(
    tokenizer: Tokenizer, sampling: dict[str, Any]
) -> None:
    bench = Bench(tokenizer, hook=False)
    legs = [
        bench.leg(bench.start(1, **sampling)),
        bench.leg(bench.start(2, stop_words=words_of([20, 21]))),
    ]
    assert [leg.straight for leg in legs if leg is not None] == [True, False]


def test_stop_words_take_of_the_budget(tokenizer: Tokenizer) -> None:
    words = words_of(*[[10 + place] * 256 for place in range(MOST_STOP_WORDS_TOKENS // 256)])
    with_words, without = Bench(tokenizer), Bench(tokenizer)
    with_words.start(stop_words=words)
    without.start()
    more = with_words.core.budget.held - without.core.budget.held
    assert more > 100 * MOST_STOP_WORDS_TOKENS
