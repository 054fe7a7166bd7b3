"""A model's tokenizer: text to token ids and back, and a detokeniser for each sequence."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import tokenizers

from tandem.errors import ConfigError
from tandem.text.byte_table import ByteTable, is_byte_level, special_tokens
from tandem.text.detokenizer import ByteDetokenizer, Detokenizer, StreamDetokenizer, StreamTable
from tandem.text.seams import Seams


class Around(NamedTuple):
    """The ids that a tokenizer puts around any text, such as a beginning of sequence."""

    before: list[int]
    behind: list[int]


class Tokenizer:
    """Load it once: the table it makes is shared by all sequences."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        byte_level = is_byte_level(json.loads(tokenizer.to_str()))
        self._bytes = ByteTable(tokenizer) if byte_level else None
        self._stream = None if byte_level else StreamTable(tokenizer)

    @staticmethod
    def load(model_path: Path) -> Tokenizer:
        """Read the folder's tokenizer.json. Raises ConfigError, which says what to do."""
        path = model_path / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"there is no {path}: Tandem needs the model's tokenizer")
        try:
            return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"cannot read {path} ({error}): download the model again") from error

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token: they bound how few tokens a text can have."""
        return max(map(len, self._tokenizer.get_vocab()))

    @cached_property
    def added_tokens(self) -> frozenset[str]:
        """Texts of special tokens and of a family's markers."""
        return frozenset(
            token.content for token in self._tokenizer.get_added_tokens_decoder().values()
        )

    @cached_property
    def seams(self) -> Seams:
        """Where texts may be cut: see `encode_parts`."""
        hidden = self._tokenizer.encode_special_tokens  # then some are not looked for
        return Seams([] if hidden else [*self._tokenizer.get_added_tokens_decoder().values()])

    @cached_property
    def around(self) -> Around | None:
        """None: what the tokenizer puts around a text may depend on the text."""
        whole, other = self._tokenizer.encode_batch_fast(["a", "b c"])
        before = list(takewhile(bool, whole.special_tokens_mask))
        behind = list(takewhile(bool, reversed(whole.special_tokens_mask)))
        ids = whole.ids
        around = Around(ids[: len(before)], ids[len(ids) - len(behind) :])
        for text, encoding in (("a", whole), ("b c", other)):
            between = self.encode(text, special_tokens=False)
            if encoding.ids != [*around.before, *between, *around.behind]:
                return None
        return around

    @cached_property
    def _special(self) -> dict[str, int]:
        return special_tokens(self._tokenizer)

    def special_ids_of(self, texts: Iterable[str]) -> list[int]:
        """The ids of those texts that are special tokens, in their order."""
        return [self._special[text] for text in texts if text in self._special]

    def encode(self, text: str, *, special_tokens: bool) -> list[int]:
        """`special_tokens`: with the tokens that the tokenizer puts around a text."""
        # encode_batch_fast lets go of the interpreter lock, which encode does not.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special_tokens)
        token_ids: list[int] = encoding.ids
        return token_ids

    def encode_parts(self, parts: Sequence[str]) -> list[list[int]]:
        """The ids of each part of a text that was cut at its `seams`. Joined, they are those of the
        text, without those that the tokenizer puts around it.
        """
        encodings = self._tokenizer.encode_batch_fast(parts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text, special tokens included, so that it encodes back to the same ids."""
        if self._bytes is not None:
            return self._bytes.decode(token_ids)
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for. Exact for byte-level vocabularies, even inside a character."""
        if self._bytes is not None:
            return self._bytes.bytes_of(token_id)
        return self.decode([token_id]).encode()

    def detokenizer(self, shown: Collection[int] = ()) -> Detokenizer:
        """A detokeniser for one sequence, which shows these special tokens and no other."""
        if self._bytes is not None:
            return ByteDetokenizer(self._bytes, shown)
        assert self._stream is not None
        return StreamDetokenizer(self._stream, shown)
