"""Text to token ids and back, with the model's own tokenizer files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as Encoder

from tandem.engine import model_files
from tandem.errors import ConfigError

_THREAD_ABOVE_CHARACTERS = 32 * 1024
"""Longer texts are encoded in a thread: at about 10 MB/s they would hold up every stream."""


class Tokenizer:
    """One model's tokenizer. Token ids are below `vocabulary`, which may exceed the tokenizer's
    own.
    """

    def __init__(self, model_path: Path) -> None:
        """Raises ConfigError where the folder's files are missing or malformed."""
        path = model_path / "tokenizer.json"
        self.sha256 = model_files.tokenizer_sha256(model_path)
        self.vocabulary = model_files.vocabulary(model_path)
        self.context_length = model_files.context_length(model_path)
        content = path.read_text(encoding="utf-8")
        try:
            self._encoder = Encoder.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{path} is not a tokenizer: {error}") from error
        self._encoder.no_padding()
        self._encoder.no_truncation()
        self._bytes = self._byte_table() if _is_byte_level(json.loads(content)) else None

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids. With `add_special_tokens`, what the tokenizer adds by itself (often a BOS)."""
        if len(text) > _THREAD_ABOVE_CHARACTERS:
            return await asyncio.to_thread(self._encode, text, add_special_tokens)
        return self._encode(text, add_special_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, special tokens included, so that it encodes back to the same ids."""
        return str(self._encoder.decode(list(token_ids), skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for. Exact for byte-level vocabularies, even inside a character."""
        if self._bytes is not None:
            return self._bytes.get(token_id, b"")
        return str(self._encoder.decode([token_id], skip_special_tokens=False)).encode()

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # encode_batch_fast lets go of the interpreter lock, which encode does not.
        (encoding,) = self._encoder.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids

    def _byte_table(self) -> dict[int, bytes]:
        """Each id's bytes: added tokens are plain text, others are in GPT-2's alphabet."""
        alphabet = _byte_alphabet()
        added = self._encoder.get_added_tokens_decoder()
        table = {}
        for piece, token_id in self._encoder.get_vocab(with_added_tokens=True).items():
            if token_id in added or any(character not in alphabet for character in piece):
                table[token_id] = piece.encode()
            else:
                table[token_id] = bytes(alphabet[character] for character in piece)
        return table


def _is_byte_level(content: dict[str, object]) -> bool:
    decoder = content.get("decoder")
    if not isinstance(decoder, dict):
        return False
    parts = decoder.get("decoders", [decoder])
    return any(part.get("type") == "ByteLevel" for part in parts)


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, as GPT-2's byte-level BPE writes bytes.

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode)
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + position): byte for position, byte in enumerate(others)
    }
