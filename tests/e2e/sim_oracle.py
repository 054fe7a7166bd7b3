"""What the sim engine makes of a prompt, without a stack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np

from tandem.engine import model_files
from tandem_sim.kv_pool import KvPool
from tandem_sim.language import Language, advance, begin

MODEL = Path(__file__).resolve().parents[2] / "model" / "tandem-tiny"
_LONGEST = 512
"""Tokens of a prompt."""


def any_prompt(rng: Random) -> list[int]:
    """Of 2 to 200 tokens."""
    return [rng.randint(100, 2000) for _ in range(rng.randint(2, 200))]


class Oracle:
    """Says what the sim engine makes of a prompt, without a stack."""

    def __init__(self) -> None:
        vocabulary = model_files.vocabulary(MODEL)
        self._language = Language.load(MODEL, vocabulary=vocabulary, eos_token_ids=frozenset())
        page = np.zeros((1, 64 * _LONGEST), dtype=np.uint8)
        self._pool = KvPool(page, page_size=_LONGEST, token_bytes=64, context_length=_LONGEST)

    def prompt(self, rng: Random) -> list[int]:
        """Any will do."""
        return any_prompt(rng)

    def answer(self, prompt: Sequence[int], count: int, lora_adapter: str = "") -> list[int]:
        """Its first tokens, with an adapter of the model."""
        self._pool.fill([0], prompt, lora_adapter)
        state = begin(self._pool.slot([0], len(prompt) - 1), None, lora_adapter)
        tokens: list[int] = []
        for _ in range(count):
            tokens.append(self._language.word(state))
            state = advance(state, tokens[-1])
        return tokens
