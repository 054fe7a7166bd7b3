"""Text to token ids and back, with the model's own tokenizer files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tandem.engine import model_files
from tandem.text import tokenizer

_THREAD_ABOVE_CHARACTERS = 32 * 1024
"""Longer texts are encoded in a thread: at about 10 MB/s they would hold up every stream."""


class Tokenizer:
    """One model's tokenizer. Token ids are below `vocabulary`, which may exceed the tokenizer's
    own.
    """

    def __init__(self, model_path: Path) -> None:
        """Raises ConfigError where the folder's files are missing or malformed."""
        self.sha256 = model_files.tokenizer_sha256(model_path)
        self.vocabulary = model_files.vocabulary(model_path)
        self.context_length = model_files.context_length(model_path)
        self._tokenizer = tokenizer.Tokenizer.load(model_path)
        self.decode = self._tokenizer.decode
        self.token_bytes = self._tokenizer.token_bytes

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids. With `add_special_tokens`, what the tokenizer adds by itself (often a BOS)."""
        encode = self._tokenizer.encode
        if len(text) > _THREAD_ABOVE_CHARACTERS:
            return await asyncio.to_thread(encode, text, special_tokens=add_special_tokens)
        return encode(text, special_tokens=add_special_tokens)
