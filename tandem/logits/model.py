"""What a processor may know of the model it steers. The tokenizer is read when it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class Model:
    """One model. Shared by all processors of a process: read it, do not keep state on it."""

    def __init__(
        self,
        *,
        vocabulary: int,
        eos_token_ids: Iterable[int] = (),
        tokenizer_path: Path | str | None = None,
    ) -> None:
        """`tokenizer_path` names a tokenizer.json, or is None where there is none."""
        self.vocabulary = vocabulary
        """Token ids are below it, and a row has as many values."""
        self.eos_token_ids = frozenset(eos_token_ids)
        """The tokens that end a sequence; may be empty."""
        self.tokenizer_path = None if tokenizer_path is None else Path(tokenizer_path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def _facts(self) -> tuple[int, frozenset[int], Path | None]:
        return self.vocabulary, self.eos_token_ids, self.tokenizer_path

    @property
    def eos_token_id(self) -> int:
        """The one to end a sequence with. Raises ValueError where the model has none."""
        if not self.eos_token_ids:
            raise ValueError("this model has no end-of-sequence token, so no end can be forced")
        return min(self.eos_token_ids)

    def check(self, token_ids: Iterable[int]) -> None:
        """Raises ValueError for a token that the model does not have."""
        for token_id in token_ids:
            if not 0 <= token_id < self.vocabulary:
                raise ValueError(
                    f"token id {token_id} is outside the vocabulary of {self.vocabulary}"
                )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens. Raises ValueError for an empty result."""
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if not token_ids:
            raise ValueError("an empty text has no tokens")
        return token_ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of some tokens; a character that is cut shows as U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def texts(self) -> list[str]:
        """How the tokenizer writes each token of the vocabulary; empty where it has none."""
        tokenizer = self._tokenizer
        return [tokenizer.id_to_token(token_id) or "" for token_id in range(self.vocabulary)]

    @functools.cached_property
    def _tokenizer(self) -> Any:
        if self.tokenizer_path is None:
            raise ValueError("this model has no tokenizer: name token ids instead of texts")
        import tokenizers

        return tokenizers.Tokenizer.from_file(str(self.tokenizer_path))
