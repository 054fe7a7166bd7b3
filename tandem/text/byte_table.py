"""The bytes of every token of a byte-level BPE tokenizer, and which tokenizers are of that kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers


class ByteTable:
    """Every token's bytes by its id. Ids that the vocabulary leaves out have none."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, token_id in vocabulary.items():
            # The text is searched for added tokens before anything becomes bytes, so an added
            # token stands for its own characters even where all of them are in the alphabet.
            self.pieces[token_id] = token.encode() if token_id in added else _bytes_of(token)
        self.shown = list(self.pieces)
        """`pieces` without special tokens, which a client does not see."""
        for token_id in special_tokens(tokenizer).values():
            self.shown[token_id] = b""
        self.texts = [_text_or_none(piece) for piece in self.shown]
        """What is shown, as text; None where the token is no whole number of characters."""

    def bytes_of(self, token_id: int) -> bytes:
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, special tokens included."""
        return b"".join(map(self.bytes_of, token_ids)).decode(errors="replace")


def is_byte_level(tokenizer_json: dict[str, Any]) -> bool:
    """Whether each token stands for fixed bytes, whatever its neighbours."""
    decoder = tokenizer_json.get("decoder") or {}
    kinds = [part.get("type") for part in decoder.get("decoders", [decoder])]
    return [kind for kind in kinds if kind != "Fuse"] == ["ByteLevel"]


def special_tokens(tokenizer: tokenizers.Tokenizer) -> dict[str, int]:
    added = tokenizer.get_added_tokens_decoder()
    return {token.content: token_id for token_id, token in added.items() if token.special}


def _alphabet() -> dict[str, int]:
    """Character to byte, as GPT-2's byte-level BPE writes bytes.

    Source: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode)
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }


_BYTE_OF = _alphabet()


def _bytes_of(token: str) -> bytes:
    """A token with a character outside the alphabet is plain text."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def _text_or_none(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
