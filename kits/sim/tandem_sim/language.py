"""What the simulated model says: a chain of hashes, spoken in words of the tokenizer.

A sequence's state is a 64-bit number. It begins as a digest of the KV slot of the last prompt
token, and each token that is chosen moves it on; so whoever has the KV can continue, and nobody
else.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tandem.errors import ConfigError

MASK = 2**64 - 1
MULTIPLIER = 6364136223846793005  # Knuth's MMIX: the high bits of the chain are well mixed
_WORD = re.compile(r" [A-Za-z]{2,}")
_ENOUGH_WORDS = 4096
_TOP_LOGIT = 8.0
_NOISE = 4.0


@dataclass(slots=True, frozen=True, eq=False)
class Language:
    """Tokens that may be said, and noise for those that are not."""

    words: Sequence[int]
    """Token ids, each a whole word with a space before it."""
    eos: int | None
    """The token that ends a sequence naturally; None where the model has none."""
    vocabulary: int
    noise: Any
    """float32, shape (vocabulary,), in [0, 4)."""

    _likeliest: Any
    """Tokens by their noise, the most first."""
    _noise_sum: float
    """The sum of the noise's exponentials."""

    @staticmethod
    def load(model_path: Path, *, vocabulary: int, eos_token_ids: frozenset[int]) -> Language:
        """Load the language of a folder's tokenizer.json. Raises ConfigError."""
        words = _words(model_path / "tokenizer.json", vocabulary)
        noise = np.random.default_rng(0).random(vocabulary, dtype=np.float32) * _NOISE
        eos = min(eos_token_ids, default=None)
        return Language(
            words=words,
            eos=eos,
            vocabulary=vocabulary,
            noise=noise,
            _likeliest=np.argsort(-noise, kind="stable"),
            _noise_sum=float(np.exp(noise, dtype=np.float64).sum()),
        )

    def word(self, state: int) -> int:
        """The token said next, unless the sequence ends."""
        return self.words[(state >> 32) * len(self.words) >> 32]

    def row(self, state: int, token: int) -> Any:
        """Fresh logits, float32, shape (vocabulary,), the highest of them `token`'s."""
        row = np.roll(self.noise, state % self.vocabulary)
        row[token] = _TOP_LOGIT
        return row

    def logprob(self, state: int, favoured: int, token: int) -> float:
        """A token's, in the row of `state` that favours another or the same; without the row."""
        covered = float(self.noise[(favoured - state) % self.vocabulary])
        total = math.log(self._noise_sum - math.exp(covered) + math.exp(_TOP_LOGIT))
        logit = _TOP_LOGIT if token == favoured else self.noise[(token - state) % self.vocabulary]
        return float(logit) - total

    def likeliest(self, state: int, favoured: int, count: int) -> list[int]:
        """The `count` likeliest tokens of the row of `state`, best first."""
        others = (self._likeliest[: count + 1] + state % self.vocabulary) % self.vocabulary
        return [favoured, *(int(each) for each in others if each != favoured)][:count]


def advance(state: int, token: int) -> int:
    """The state after `token` was chosen."""
    return (state * MULTIPLIER + 2 * token + 1) & MASK


def begin(slot: bytes, seed: int | None, lora_adapter: str = "") -> int:
    """The state after a prompt whose last KV slot is `slot`; sampled with `seed`, or greedily, by
    the model with an adapter.
    """
    person, salt = (b"", b"") if seed is None else (b"seed", (seed & MASK).to_bytes(8, "little"))
    digest = hashlib.blake2b(
        slot, digest_size=8, person=person, salt=salt, key=lora_adapter.encode()
    ).digest()
    return int.from_bytes(digest, "little")


def natural_length(state: int, shortest: int, longest: int) -> int:
    """How many tokens a sequence that begins with `state` has, its end token included."""
    return shortest + (state & 0xFFFF_FFFF) * (longest - shortest + 1) // 2**32


def _words(path: Path, vocabulary: int) -> Sequence[int]:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ConfigError(f"cannot read {path} ({error}): download the model again") from error
    # Some decoders drop a leading space, so every token is decoded behind another one.
    anchor = tokenizer.encode("a", add_special_tokens=False).ids
    before = len(tokenizer.decode(anchor))
    words = []
    for token in range(min(vocabulary, tokenizer.get_vocab_size())):
        if _WORD.fullmatch(tokenizer.decode([*anchor, token])[before:]):
            words.append(token)
            if len(words) == _ENOUGH_WORDS:
                break
    if not words:
        raise ConfigError(f"{path} has no token that is a word with a space before it")
    return words
