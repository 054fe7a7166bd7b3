"""Text to token ids and back, with the model's own tokenizer files."""

from __future__ import annotations

from pathlib import Path

from tandem.engine import model_files
from tandem.text import tokenizer


class ModelTokenizer:
    """One model's tokenizer. `vocabulary` bounds token ids, and may exceed the tokenizer's own."""

    def __init__(self, model_path: Path) -> None:
        """Raises ConfigError where the folder's files are missing or malformed."""
        self.sha256 = model_files.tokenizer_sha256(model_path)
        self.vocabulary = model_files.vocabulary(model_path)
        self.eos_token_ids = sorted(model_files.eos_token_ids(model_path))
        self.context_length = model_files.context_length(model_path)
        self._tokenizer = tokenizer.Tokenizer.load(model_path)
        self.decode = self._tokenizer.decode
        self.token_bytes = self._tokenizer.token_bytes
        self.encode_parts = self._tokenizer.encode_parts
        self._seams = self._tokenizer.seams  # which takes a while, and is done where files are read
        self.around = self._tokenizer.around
        self.special_ids_of = self._tokenizer.special_ids_of
        self.longest_token = self._tokenizer.longest_token
        self.added_tokens = self._tokenizer.added_tokens

    def cuts(self, text: str, apart: int) -> list[int]:
        """Where a text may be cut for `encode_parts`: see tandem/text/seams.py."""
        return self._seams.cuts(text, apart)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids. With `add_special_tokens`, what the tokenizer adds by itself (often a BOS)."""
        return self._tokenizer.encode(text, special_tokens=add_special_tokens)
