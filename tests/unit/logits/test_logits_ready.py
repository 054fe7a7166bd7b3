"""What holds for every ready-made processor: on both kinds of row, anywhere, in any batch."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from logits_bench import EOS, MODEL, Given, Library, generate, plain, rows, state_of
from one_case import one_case

from tandem.errors import InvalidRequestError
from tandem.logits import Model, TokenHistory
from tandem.logits.processor import leaves_token
from tandem.logits.ready import READY
from tandem.logits.rows import apply_rows

EXAMPLES: dict[str, dict[str, Any]] = {
    "allowed_tokens": {"token_ids": [70, 71, 72]},
    "banned_sequences": {"sequences": [[70, 71], [300]], "texts": ["foo"]},
    "banned_tokens": {"token_ids": [70, 71]},
    "bias": {"bias": {"77": 30.0, "78": -5}},
    "choice": {"texts": ["yes", "no", "not at all"]},
    "ebnf": {"grammar": 'root ::= "a" | "bc" root'},
    "forced_prefix": {"text": "Sure"},
    "forced_sequence": {"token_ids": [70, 71]},
    "json_schema": {"schema": {"enum": ["red", "green"]}},
    "max_new_tokens": {"count": 4},
    "min_new_tokens": {"count": 4},
    "no_repeat_ngram": {"size": 2},
    "regex": {"pattern": "(yes|no) [0-9]{3}"},
    "repetition_penalty": {"penalty": 1.5},
    "stop_at_sentence": {"after": 3, "marks": "aeiou"},
    "tagged": {
        "calls": [{"begin": "<f>", "schema": {"enum": [1, 22]}, "end": "</f>"}],
        "begin": "<|im_start|>",
    },
    "temperature_schedule": {"points": [[0, 1.0], [10, 0.5]]},
    "thinking_budget": {"budget": 4, "end_text": "</think>"},
    "watermark": {"key": "k"},
}


def test_every_ready_made_processor_has_an_example_here() -> None:
    assert EXAMPLES.keys() == READY.keys()


@pytest.mark.promise("S3-096")
@one_case("name", EXAMPLES)
def test_the_tokens_are_the_same_on_numpy_and_torch(name: str) -> None:
    first = generate(state_of((name, EXAMPLES[name])), "numpy")
    assert generate(state_of((name, EXAMPLES[name])), "torch") == first
    assert len(first) > 1


@pytest.mark.promise("S1-051", "S1-052")
@one_case("name", EXAMPLES)
def test_a_fresh_processor_at_any_position_goes_on_as_the_first_would(
    name: str, library: Library
) -> None:
    whole = generate(state_of((name, EXAMPLES[name])), library)
    batch = rows(library, len(whole))
    for position, token in enumerate(whole):
        row = batch[position]
        fresh = state_of((name, EXAMPLES[name]))
        assert fresh.apply(TokenHistory((5, 6, 7), whole[:position]), row) is None
        assert int(row.argmax()) == token


@one_case("name", EXAMPLES)
def test_a_repeated_position_and_one_before_it_change_nothing(name: str, library: Library) -> None:
    """As after a retraction, or where an engine samples again."""
    whole = generate(state_of((name, EXAMPLES[name])), library)
    state, batch = state_of((name, EXAMPLES[name])), rows(library, len(whole))
    last = len(whole) - 1
    for position in (*range(last + 1), last, 0, last // 2, last // 2):
        row = batch[position][:] + 0.0
        assert state.apply(TokenHistory((5, 6, 7), whole[:position]), row) is None
        assert int(row.argmax()) == whole[position]


@one_case("name", EXAMPLES)
def test_many_rows_together_are_edited_as_each_alone(name: str, library: Library) -> None:
    history = generate(state_of((name, EXAMPLES[name])), library)
    lengths = [0, 1, 2, len(history) - 1]
    together, alone = rows(library, len(lengths)), rows(library, len(lengths))
    histories = [TokenHistory((5, 6, 7), history[:length]) for length in lengths]
    states = [state_of((name, EXAMPLES[name])) for _ in lengths]
    assert apply_rows(states, histories, together) == [None] * len(lengths)
    for row, past in zip(alone, histories, strict=True):
        assert state_of((name, EXAMPLES[name])).apply(past, row) is None
    assert numpy.array_equal(plain(together), plain(alone))


SURE = {"forced_sequence", "forced_prefix", "bias", "max_new_tokens", "thinking_budget"}
SURE |= {"stop_at_sentence", "watermark"}


@one_case("name", EXAMPLES)
def test_only_what_cannot_take_the_last_token_says_that_it_left_one(
    name: str, library: Library
) -> None:
    """Rows in which one token is possible, each in turn; a row that nobody looked at is right."""
    state = state_of((name, EXAMPLES[name]))
    processor = state.parts[0].processor
    for token in range(0, MODEL.vocabulary, 97):
        row = rows(library, 1)[0]
        row[:token] = row[token + 1 :] = -math.inf
        processor(TokenHistory((5, 6, 7), []), row)
        left = math.isfinite(float(row.max()))
        assert left or not leaves_token(processor)
        assert leaves_token(processor) or name not in SURE


@pytest.mark.promise("S3-089", "S1-050")
def test_kinds_mixed_in_one_batch_keep_to_their_own_rows(library: Library) -> None:
    names: list[str] = [*EXAMPLES, *EXAMPLES]
    batch, alone = rows(library, len(names)), rows(library, len(names))
    states = [state_of((name, EXAMPLES[name])) for name in names]
    past = TokenHistory((5, 6, 7), [])
    assert apply_rows(states, [past] * len(names), batch) == [None] * len(names)
    for name, row in zip(names, alone, strict=True):
        assert state_of((name, EXAMPLES[name])).apply(past, row) is None
    assert numpy.array_equal(plain(batch), plain(alone))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("forced_prefix", {}), "give either token_ids or text"),
        (("forced_prefix", {"token_ids": [1], "text": "a"}), "give either"),
        (("allowed_tokens", {"token_ids": []}), "argument 'token_ids'"),
        (("allowed_tokens", {"token_ids": [4096]}), "4096 is outside the vocabulary of 2048"),
        (("banned_sequences", {}), "give sequences or texts"),
        (("banned_sequences", {"sequences": [[]]}), "argument 'sequences'"),
        (("banned_sequences", {"sequences": [[70], [70] * 65]}), "argument 'sequences'"),
        (("banned_sequences", {"texts": ["foo", "foo " * 64]}), "more than 64 tokens"),
        (("bias", {"bias": {"x": 1}}), "argument 'bias'"),
        (("bias", {"bias": {"1": "2"}}), "argument 'bias'"),
        (("bias", {"bias": {"1": 1e9}}), "argument 'bias'"),
        (("bias", {"bias": {"-1": 1}}), "-1 is outside"),
        (("choice", {}), "give texts or token_ids"),
        (("max_new_tokens", {"count": -1}), "argument 'count'"),
        (("no_repeat_ngram", {"size": 0}), "argument 'size'"),
        (("repetition_penalty", {"penalty": 0}), "argument 'penalty'"),
        (("temperature_schedule", {"points": []}), "argument 'points'"),
        (("temperature_schedule", {"points": [[5, 1], [5, 2]]}), "positions must rise"),
        (("temperature_schedule", {"points": [[0, 0]]}), "argument 'points'"),
        (("stop_at_sentence", {"after": 1, "marks": ""}), "argument 'marks'"),
        (("watermark", {"key": ""}), "argument 'key'"),
        (("watermark", {"key": "k", "gamma": 1}), "argument 'gamma'"),
        (("regex", {"pattern": "(a"}), "unclosed group"),
        (("ebnf", {"grammar": "root = a"}), "'ebnf'"),
        (("json_schema", {"schema": {"type": "objec"}}), "Invalid type"),
        (("json_schema", {"schema": "object"}), "argument 'schema'"),
        (("tagged", {"calls": []}), "without calls"),
        (("tagged", {"calls": [{"begin": "f"}]}), "`schema`"),
        (("tagged", {"calls": [{"schema": {"type": "objec"}}]}), "Invalid type"),
        (("tagged", {"calls": [{"schema": {}, "last": ""}]}), "`last`"),
        (("tagged", {"calls": [{"schema": {}}], "triggers": [""]}), "argument 'triggers'"),
        (("tagged", {"calls": [{"schema": {}}], "triggers": ["f"]}), "calls[0] begins with no"),
        (
            ("tagged", {"calls": [{"schema": {}, "begin": "fa"}], "triggers": ["f", "fb"]}),
            "triggers[1]: no call begins with it",
        ),
        (
            (
                "tagged",
                {"calls": [{"schema": {}, "begin": "f"}], "triggers": ["f"], "answer": {}},
            ),
            "the answer may be any text",
        ),
        (("tagged", {"calls": [{"schema": {}, "begin": '{"n": '}], "answer": {}}), "look alike"),
        (
            ("tagged", {"calls": [{"schema": {}, "begin": "["}, {"schema": {}}]}),
            "look alike",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_the_clients_error(given: Given, says: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        state_of(given)
    assert says in refusal.value.message
    assert f"'{given[0]}'" in refusal.value.message


@pytest.mark.promise("S1-053")
@pytest.mark.parametrize("name", ["forced_sequence", "max_new_tokens", "min_new_tokens", "choice"])
def test_what_must_end_an_answer_is_refused_for_a_model_without_an_end(name: str) -> None:
    endless = Model(vocabulary=2048, tokenizer_path=MODEL.tokenizer_path)
    with pytest.raises(InvalidRequestError, match="no end-of-sequence token"):
        state_of((name, EXAMPLES[name]), model=endless)


@pytest.mark.parametrize("name", ["stop_at_sentence", "regex"])
def test_what_reads_text_is_refused_for_a_model_without_a_tokenizer(name: str) -> None:
    silent = Model(vocabulary=2048, eos_token_ids=[EOS])
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        state_of((name, EXAMPLES[name]), model=silent)


def test_answers_given_twice_and_beginnings_of_others_are_chosen_as_each_alone() -> None:
    longest = MODEL.encode("a b c d")
    texts = [*["a b c"] * 500, "a", "a", "a b"]
    state = state_of(("choice", {"texts": texts, "token_ids": [longest, longest]}))
    for length in range(1, len(longest) + 1):
        row = rows("numpy", 1)[0]
        assert state.apply(TokenHistory((5,), longest[:length]), row) is None
        left = {int(token) for token in numpy.flatnonzero(numpy.isfinite(row))}
        goes_on = set(longest[length : length + 1])
        ends = longest[:length] in [longest, *map(MODEL.encode, texts)]
        assert left == goes_on | ({EOS} if ends else set())
