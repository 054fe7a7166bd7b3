"""Processors with a well-known original give its numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from logits_bench import EOS, Given, rows, state_of

from tandem.logits import TokenHistory

pytestmark = pytest.mark.sglang  # transformers comes with it


@pytest.fixture(scope="module")
def originals() -> Any:
    from transformers.generation import logits_process

    return logits_process


def check(given: Given, original: Any, *, prompt: int = 6) -> None:
    """At every position of random sequences of few different tokens."""
    rng = random.Random(3)
    for _ in range(6):
        tokens = [rng.randint(40, 48) for _ in range(50)]
        state = state_of(given)
        for length in range(prompt + 1, len(tokens)):
            row = rows("torch", 1, seed=length)[0]
            expected = original(torch.tensor([tokens[:length]]), row[None].clone())[0]
            assert state.apply(TokenHistory(tokens[:prompt], tokens[prompt:length]), row) is None
            assert torch.equal(row.isinf(), expected.isinf())
            assert torch.allclose(row, expected, rtol=1e-5)


def test_repetition_penalty(originals: Any) -> None:
    check(
        ("repetition_penalty", {"penalty": 1.3}),
        originals.RepetitionPenaltyLogitsProcessor(1.3),
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_no_repeat_ngram(originals: Any, size: int) -> None:
    check(("no_repeat_ngram", {"size": size}), originals.NoRepeatNGramLogitsProcessor(size))


def test_banned_sequences_in_the_answer(originals: Any) -> None:
    """The original looks at the prompt too, so here there is none to look at."""
    banned = [[41, 42], [43], [44, 45, 46]]
    check(
        ("banned_sequences", {"sequences": banned}),
        originals.NoBadWordsLogitsProcessor(banned, eos_token_id=EOS),
        prompt=0,
    )


@pytest.mark.parametrize("count", [0, 10, 100])
def test_min_new_tokens(originals: Any, count: int) -> None:
    check(
        ("min_new_tokens", {"count": count}),
        originals.MinNewTokensLengthLogitsProcessor(6, count, EOS, device="cpu"),
    )
