"""A sequence ends with its first stop word, in whatever pieces its tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_harness import Bench, delta, ids_of, terminate_at, with_logprobs

from tandem.engine.base import Delta, Ending
from tandem.hooks.contract import Chunk, Verdict, emit, suppress
from tandem.text.stop_strings import StopStrings
from tandem.text.stop_words import StopWords, StopWordTable
from tandem.text.tokenizer import Tokenizer
from tandem.v1 import common_pb2
from tandem.worker.core.output import Output
from tandem.worker.task_checks import MOST_STOP_WORDS_TOKENS

TOKENS = st.lists(st.integers(10, 13), max_size=24)
WORDS = st.lists(st.lists(st.integers(10, 13), min_size=1, max_size=5), min_size=1, max_size=5)
STOP = common_pb2.FINISH_REASON_STOP
LENGTH = common_pb2.FINISH_REASON_LENGTH
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
    output = Output(detokenizer=None, words=StopWords(StopWordTable(words)))
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


# --- what a client is told ------------------------------------------------------------------------


@pytest.fixture(params=["inline", "later"], autouse=True)
def _hooks_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test: with hooks that judge at once, and with ones that judge elsewhere."""
    monkeypatch.setattr(Bench, "hooks_run", request.param)


@pytest.mark.promise("S2-078")
@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize("want_text", [True, False])
def test_a_stop_word_over_several_steps_is_shown_and_ends_the_sequence(
    tokenizer: Tokenizer, hook: bool, want_text: bool
) -> None:
    bench = Bench(tokenizer, hook=hook)
    tokens = ids_of(tokenizer, "one END two")
    word = ids_of(tokenizer, "one END")[1:]
    assert len(word) > 1
    request = bench.start(stop_words=words_of(word), task=IDS | {"want_text": want_text})
    for token_id in tokens:
        bench.step(delta(request, [token_id]))
    said = bench.settle()
    assert said.token_ids(101) == ids_of(tokenizer, "one END")
    assert said.text(101) == ("one END" if want_text else "")
    (finish,) = said.finishes(101)
    assert (finish.reason, finish.stop_reason) == (STOP, "")
    assert list(finish.stop_tokens) == word
    assert finish.completion_tokens == len(ids_of(tokenizer, "one END"))
    assert bench.engine.cancelled == [request]


@pytest.mark.promise("S2-078")
def test_what_ended_a_sequence_is_told_apart(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    sampling: dict[str, Any] = {"stop_words": words_of([20, 21], [22]), "stop_token_ids": [23]}
    requests = [bench.start(leg, **sampling) for leg in range(1, 6)]
    assert list(bench.engine.submitted[0].sampling.stop_token_ids) == [23, 22]
    assert not bench.engine.submitted[0].sampling.stop_words
    ends = [
        ([19, 20, 21], None, [20, 21]),
        ([22], Ending.STOP, [22]),
        ([21, 23], Ending.STOP, [23]),
        ([20, 1], Ending.STOP, []),
        ([21, 20], Ending.LENGTH, []),
    ]
    for request, (tokens, end, _) in zip(requests, ends, strict=True):
        bench.step(delta(request, tokens, end))
    said = bench.settle()
    finishes = [said.finishes(100 + leg)[0] for leg in range(1, 6)]
    assert [list(finish.stop_tokens) for finish in finishes] == [word for _, _, word in ends]
    assert [finish.reason for finish in finishes] == [STOP] * 4 + [LENGTH]


def test_a_stop_word_of_one_token_has_its_text_wherever_it_ends_the_sequence(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer)
    word = ids_of(tokenizer, "the")
    assert len(word) == 1
    for leg, end in enumerate((None, Ending.STOP), 1):
        request = bench.start(leg, stop_words=words_of(word))
        bench.step(delta(request, ids_of(tokenizer, "a")), delta(request, word, end))
    assert (bench.settle().text(101), bench.said.text(102)) == ("athe", "athe")


def test_an_engine_that_goes_on_past_ends_is_not_asked_to_end_at_a_stop_word(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer)
    bench.start(stop_words=words_of([20]), ignore_eos=True)
    assert not bench.engine.submitted[0].sampling.stop_token_ids


def test_log_probabilities_end_with_the_word(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    request = bench.start(logprobs=1, stop_words=words_of([20, 21]), task=IDS)
    bench.step(with_logprobs(request, [19, 20, 21, 22]))
    assert [list(entry.token_id) for entry in bench.said.logprobs(101)] == [[19, 20, 21]]


def test_the_outputs_of_a_request_end_each_by_itself(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    requests = [
        bench.start(leg, output_index=leg - 1, stop_words=words_of([20, 21]), task=IDS)
        for leg in (1, 2)
    ]
    bench.step(*(delta(request, [20]) for request in requests))
    bench.step(delta(requests[0], [21]), delta(requests[1], [20]))
    bench.step(delta(requests[1], [21]))
    said = bench.settle()
    assert (said.token_ids(101), said.token_ids(102)) == ([20, 21], [20, 20, 21])


def test_a_further_run_of_a_blocked_output_begins_anew_with_the_same_words(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer)
    fields = {"stop_words": words_of([20, 21])}
    bench.step(delta(bench.start(1, task=IDS, **fields), [20], Ending.LENGTH))
    again = {"regeneration": {"count": 1, "spent_tokens": 1}}
    request = bench.start(2, task=IDS | again, **fields)
    bench.step(delta(request, [21]), delta(request, [20]), delta(request, [21]))
    said = bench.settle()
    assert said.token_ids(102) == [21, 20, 21]
    assert list(said.finishes(102)[0].stop_tokens) == [20, 21]
    assert said.finishes(102)[0].completion_tokens == 1 + 3


# --- with hooks and stop strings ------------------------------------------------------------------


def test_hooks_see_the_text_of_the_word_and_that_it_is_the_last(tokenizer: Tokenizer) -> None:
    bench = Bench(tokenizer)
    word = ids_of(tokenizer, "the end")
    request = bench.start(stop_words=words_of(word))
    bench.step(delta(request, [*word, 20]))
    (call,) = [call for call in bench.hook.calls if not call.aborted]
    assert (call.text_diff, call.is_final) == ("the end", True)
    assert list(call.token_ids_diff) == word


def test_a_word_whose_first_token_a_hook_holds_is_found_all_the_same(
    tokenizer: Tokenizer,
) -> None:
    def judge(chunk: Chunk) -> Verdict:
        return emit(chunk.text) if chunk.is_final else suppress()

    bench = Bench(tokenizer, judge=judge)
    word = ids_of(tokenizer, "the end")
    request = bench.start(stop_words=words_of(word))
    for token_id in [*ids_of(tokenizer, "a"), *word, 20]:
        bench.step(delta(request, [token_id]))
    said = bench.settle()
    assert said.text(101) == "athe end"
    assert list(said.finishes(101)[0].stop_tokens) == word


def test_a_hook_that_ends_the_sequence_at_a_stop_word_has_the_last_word(
    tokenizer: Tokenizer,
) -> None:
    bench = Bench(tokenizer, judge=terminate_at(2))
    request = bench.start(stop_words=words_of([20, 21]))
    bench.step(delta(request, [20]))
    bench.step(delta(request, [21]))
    (finish,) = bench.settle().finishes(101)
    assert (finish.stop_reason, finish.withheld, list(finish.stop_tokens)) == ("guard", True, [])


@pytest.mark.parametrize(
    ("stop", "text", "stop_reason", "stop_tokens"),
    [
        ("one", "", "one", False),
        ("END", "one ", "END", False),
        ("END two", "one END", "", True),
        ("two", "one END", "", True),
    ],
)
def test_of_a_stop_string_and_a_stop_word_the_one_that_ends_first_ends_the_sequence(
    tokenizer: Tokenizer, stop: str, text: str, stop_reason: str, stop_tokens: bool
) -> None:
    word = ids_of(tokenizer, "one END")
    tokens = [*word, *ids_of(tokenizer, " two")]
    for size in (1, len(tokens)):
        bench = Bench(tokenizer)
        request = bench.start(stop=[stop], stop_words=words_of(word), task=IDS)
        for begin in range(0, len(tokens), size):
            bench.step(delta(request, tokens[begin : begin + size]))
        said = bench.settle()
        (finish,) = said.finishes(101)
        assert (said.text(101), finish.stop_reason) == (text, stop_reason)
        assert list(finish.stop_tokens) == (word if stop_tokens else [])
        assert stop_tokens is (said.token_ids(101) == word)


def test_an_unfinished_character_ends_with_the_word(tokenizer: Tokenizer) -> None:
    begun = ids_of(tokenizer, "☃")[:1]
    for stops in (None, StopStrings(["never"])):
        words = StopWords(StopWordTable([begun]))
        output = Output(detokenizer=tokenizer.detokenizer(), stops=stops, words=words)
        assert output.cut(Delta(1, [*begun, 20])).text == "\ufffd"


# --- both phases, and what costs nothing ----------------------------------------------------------


def test_prefill_judges_a_word_of_one_token_as_decode_does(tokenizer: Tokenizer) -> None:
    word = ids_of(tokenizer, "the")
    calls = []
    for phase, end in (("prefill", Ending.LENGTH), ("decode", None)):
        bench = Bench(tokenizer, phase=phase)  # type: ignore[arg-type]
        request = bench.start(stop_words=words_of(word))
        bench.step(delta(request, word, end))
        (call,) = [call for call in bench.hook.calls if not call.aborted]
        calls.append((call.text_diff, call.token_ids_diff, call.is_final))
    assert calls[0] == calls[1] == ("the", tuple(word), True)


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
