"""A bias on many tokens: what it may be, and what it does to a row."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch
from logits_bench import Library

from tandem.errors import InvalidRequestError
from tandem.logits import Model, TokenHistory, embedding_bias
from tandem.logits.registry import Registry
from tandem.logits.spec import LogitsProcessorEntry, LogitsProcessorSpec
from tandem.logits.state import RequestLogits
from tandem.v1 import common_pb2

VOCABULARY = 8
MODEL = Model(vocabulary=VOCABULARY)
NAN = float("nan")


def bias_of(token_ids: Sequence[int], values: Sequence[float]) -> common_pb2.EmbeddingBias:
    return common_pb2.EmbeddingBias(
        token_ids=array("I", token_ids).tobytes(), values=array("f", values).tobytes()
    )


@pytest.mark.promise("S6-167")
@pytest.mark.parametrize(
    ("bias", "says"),
    [
        (bias_of([1, 2], [1.0]), "as many of both"),
        (common_pb2.EmbeddingBias(token_ids=b"abc", values=b"abc"), "4 bytes"),
        (bias_of([2, 1], [1.0, 1.0]), "ascending"),
        (bias_of([2, 2], [1.0, 1.0]), "each once"),
        (bias_of([0, VOCABULARY], [1.0, 1.0]), "token 8, and the vocabulary has 8"),
        (bias_of([2**32 - 1], [1.0]), "the vocabulary has 8"),
        (bias_of([0], [10_001.0]), "-10000 to 10000"),
        (bias_of([0, 1], [1.0, -10_001.0]), "-10000 to 10000"),
        (bias_of([0, 1, 2], [1.0, NAN, 1.0]), "-10000 to 10000"),
        (bias_of([0], [float("-inf")]), "-10000 to 10000"),
    ],
)
def test_what_is_no_bias_of_this_model_is_refused(
    bias: common_pb2.EmbeddingBias, says: str
) -> None:
    with pytest.raises(InvalidRequestError, match=says) as error:
        embedding_bias.check(bias, VOCABULARY)
    assert error.value.param == "embedding_bias"


def test_the_whole_vocabulary_up_to_both_ends_and_nothing_at_all_pass() -> None:
    ends = [-10_000.0, 10_000.0] * (VOCABULARY // 2)
    embedding_bias.check(bias_of(range(VOCABULARY), ends), VOCABULARY)
    embedding_bias.check(bias_of([], []), VOCABULARY)


def rows_of(library: Library, count: int) -> Any:
    rows = numpy.arange(count * VOCABULARY, dtype=numpy.float32).reshape(count, VOCABULARY)
    return (
        rows
        if library == "numpy"
        else torch.from_numpy(rows).to("cuda" if library == "cuda" else "cpu")
    )


def test_a_row_gets_the_bias_at_every_position_and_its_neighbour_does_not(
    library: Library,
) -> None:
    state = RequestLogits.create(
        Registry.builtin(), None, MODEL, bias=bias_of([0, 7], [0.5, -10_000.0])
    )
    for position in range(3):
        rows = rows_of(library, 2)
        assert state.apply(TokenHistory([1], [2] * position), rows[1]) is None
        assert rows.tolist() == [
            [0, 1, 2, 3, 4, 5, 6, 7],
            [8.5, 9, 10, 11, 12, 13, 14, 15 - 10_000],
        ]


def test_it_comes_after_the_processors_and_allows_nothing_that_they_forbid() -> None:
    banned = LogitsProcessorEntry("banned_tokens", {"token_ids": [3]})
    choice = LogitsProcessorEntry("forced_sequence", {"token_ids": [2], "eos_token_id": 1})
    for entry, best in ((banned, 7), (choice, 2)):
        state = RequestLogits.create(
            Registry.builtin(),
            LogitsProcessorSpec((entry,)),
            MODEL,
            bias=bias_of([3], [10_000.0]),
        )
        row = rows_of("numpy", 1)[0]
        assert state.apply(TokenHistory([1], []), row) is None
        assert int(row.argmax()) == best
