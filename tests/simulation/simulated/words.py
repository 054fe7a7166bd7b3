"""A tokenizer whose every token is a word of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simulated.script import text_of


class Detokenizer:
    incomplete = False

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(map(text_of, token_ids))

    def flush(self) -> str:
        return ""


class Words:
    """Stands for tandem.worker.tokenizer.Tokenizer."""

    longest_token = 64
    """Longer than a token's number."""

    def encode(self, text: str, *, special_tokens: bool) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))

    def detokenizer(self, shown: Collection[int] = ()) -> Detokenizer:
        return Detokenizer()
