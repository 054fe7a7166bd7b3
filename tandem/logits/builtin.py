"""Processors that every worker knows, and the switch that proves the whole path."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from tandem.errors import StartError
from tandem.logits.processor import LogitsProcessor, Need, Row, TokenHistory
from tandem.logits.spec import FORCED_SEQUENCE, LogitsProcessorEntry, forced_token_sequence

HELLO_WORLD = "Hello world!"


class ForcedSequence:
    """Forces exactly `token_ids`, then `eos_token_id` for ever: the token at position p is
    token_ids[p] (S1-043).

    It keeps no state, so it is exact when prefill samples the first token and decode goes on in
    another process (S1-051), after a retraction and after chunked prefill (S1-052).
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.POSITION, Need.VOCABULARY})

    def __init__(self, token_ids: Sequence[int], eos_token_id: int) -> None:
        for token_id in (*token_ids, eos_token_id):
            if token_id < 0:
                raise ValueError(f"token id {token_id} is negative")
        self._token_ids = tuple(token_ids)
        self._eos_token_id = eos_token_id

    def check_vocabulary(self, size: int) -> None:
        """Raises ValueError for a token that a vocabulary of `size` does not have."""
        for token_id in (*self._token_ids, self._eos_token_id):
            if token_id >= size:
                raise ValueError(f"token id {token_id} is outside the vocabulary of {size}")

    def __call__(self, input_ids: TokenHistory, logits: Row) -> None:
        position = input_ids.position
        forced = (
            self._token_ids[position] if position < len(self._token_ids) else self._eos_token_id
        )
        logits[:] = -math.inf
        logits[forced] = 0.0


BUILTIN: dict[str, type[LogitsProcessor]] = {FORCED_SEQUENCE: ForcedSequence}


def hello_world(
    encode: Callable[[str], Sequence[int]], eos_token_ids: Collection[int]
) -> LogitsProcessorEntry:
    """The entry of the test switch: every answer becomes "Hello world!" exactly. Call it once, at
    start (S1-047).

    `encode` gives the token ids of a text without special tokens. Raises StartError where the
    tokenizer has no end token, because then no answer would ever end (S1-053).
    """
    if not eos_token_ids:
        raise StartError(
            "the test logits processor needs an end-of-sequence token, and this model's tokenizer "
            "has none; set eos_token_id in its config.json, or switch the test processor off"
        )
    token_ids = encode(HELLO_WORLD)
    if not token_ids:
        raise StartError(f"this model's tokenizer gives no tokens for {HELLO_WORLD!r}")
    return forced_token_sequence(token_ids, min(eos_token_ids))
