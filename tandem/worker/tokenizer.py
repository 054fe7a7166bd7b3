"""A model's tokenizer: prompts to token ids, and a detokeniser for each sequence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import tokenizers

from tandem.errors import StartError
from tandem.worker.detokenizer import (
    ByteDetokenizer,
    ByteTable,
    Detokenizer,
    StreamDetokenizer,
    StreamTable,
    is_byte_level,
)


class Tokenizer:
    """Load it once: the table it makes is shared by all sequences."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        byte_level = is_byte_level(json.loads(tokenizer.to_str()))
        self._table: ByteTable | StreamTable = (
            ByteTable(tokenizer) if byte_level else StreamTable(tokenizer)
        )

    @staticmethod
    def load(model_path: Path) -> Tokenizer:
        """From the folder's tokenizer.json. Raises StartError with the mend."""
        path = model_path / "tokenizer.json"
        if not path.is_file():
            raise StartError(
                f"there is no {path}: a worker needs the model's tokenizer, because hooks and stop "
                "strings read text"
            )
        try:
            return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing narrower
            raise StartError(f"cannot read {path} ({error}): download the model again") from error

    def encode(self, text: str, *, special_tokens: bool) -> list[int]:
        """`special_tokens`: with those that the tokenizer puts around a text, such as a beginning
        of sequence.
        """
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special_tokens).ids
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Special tokens included, as the model reads them."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def detokenizer(self) -> Detokenizer:
        """For one sequence."""
        if isinstance(self._table, ByteTable):
            return ByteDetokenizer(self._table)
        return StreamDetokenizer(self._table)
