"""The switch that proves the whole path of logits processors without touching model or engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from tandem.errors import StartError
from tandem.logits.spec import LogitsProcessorEntry, forced_token_sequence

HELLO_WORLD = "Hello world!"


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
