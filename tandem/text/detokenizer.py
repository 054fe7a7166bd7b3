"""Token ids to text, a few at a time: the pieces joined are what decoding all ids at once gives."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Sequence
from typing import Protocol

import tokenizers

from tandem.text.byte_table import ByteTable, special_tokens

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


class Detokenizer(Protocol):
    """One sequence's. Shows the special tokens it was told to; skips ids that do not exist."""

    incomplete: bool
    """Whether the tokens so far end inside a character."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain now. The bytes of an unfinished character wait for the rest."""

    def flush(self) -> str:
        """The rest at the end of the sequence: U+FFFD for a character that was never finished."""


class ByteDetokenizer:
    """For byte-level BPE tokenizers.

    Decoding is a look-up: 0.1 µs a token, where the tokenizer's own stream takes 0.5.
    """

    __slots__ = ("_decoder", "_shown", "_table", "incomplete")

    def __init__(self, table: ByteTable, shown: Collection[int] = ()) -> None:
        """`shown`: special tokens to show."""
        self._table = table
        self._shown = {token_id: table.bytes_of(token_id) for token_id in shown} if shown else {}
        self._decoder: codecs.IncrementalDecoder | None = None
        self.incomplete = False

    def push(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == 1 and not self.incomplete:
            token_id = token_ids[0]
            if token_id < len(self._table.texts) and (text := self._table.texts[token_id]):
                return text
        return self._decode(token_ids)

    def flush(self) -> str:
        if self._decoder is None or not self.incomplete:
            return ""
        self.incomplete = False
        return self._decoder.decode(b"", final=True)

    def _decode(self, token_ids: Sequence[int]) -> str:
        pieces, shown = self._table.shown, self._shown
        known = len(pieces)
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found = [pieces[i] or shown.get(i, b"") for i in token_ids if i < known]
        text = self._decoder.decode(b"".join(found))
        self.incomplete = bool(self._decoder.getstate()[0])
        return text


class StreamTable:
    """What a StreamDetokenizer must know of the tokenizer beside its own decoding."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.shown = frozenset(vocabulary.values()).difference(special_tokens(tokenizer).values())
        self.single_bytes = frozenset(
            token_id for token, token_id in vocabulary.items() if _BYTE_TOKEN.fullmatch(token)
        )


class StreamDetokenizer:
    """For all other tokenizers, whose text of a token depends on its neighbours.

    Tokens that stand for one byte each ("<0x0A>") are held until another kind follows: whether
    they are characters is decided for the whole run of them, so a later one can undo what an
    earlier one seemed to be.
    """

    __slots__ = ("_held", "_ids", "_sent", "_shown", "_stream", "_table", "incomplete")

    def __init__(self, table: StreamTable, shown: Collection[int] = ()) -> None:
        """`shown`: special tokens to show."""
        self._table = table
        self._shown = frozenset(shown)
        self._stream = tokenizers.decoders.DecodeStream(skip_special_tokens=False)
        self._ids: list[int] = []
        self._held: list[int] = []
        self._sent = 0
        self.incomplete = False

    def push(self, token_ids: Sequence[int]) -> str:
        table = self._table
        parts = []
        for token_id in token_ids:
            if token_id not in table.shown and token_id not in self._shown:
                continue
            self._ids.append(token_id)
            self._held.append(token_id)
            self.incomplete = True
            if token_id not in table.single_bytes:
                part = self._stream.step(table.tokenizer, self._held)
                self._held = []
                if part is not None:
                    self.incomplete = False
                    parts.append(part)
        text = "".join(parts)
        self._sent += len(text)
        return text

    def flush(self) -> str:
        if not self.incomplete:
            return ""
        self.incomplete = False
        whole: str = self._table.tokenizer.decode(self._ids, skip_special_tokens=False)
        return whole[self._sent :]
