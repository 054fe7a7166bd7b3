"""Prompts' texts to their tokens, of which the beginning may be known from an earlier prompt.

The text is cut into segments at seams (tandem/text/seams.py) that depend on nothing behind them,
so texts that begin alike have their first segments in common. A segment's name is the hash of all
text up to its end. Whoever keeps segments of earlier prompts is asked by their names how many are
known; the others alone are tokenised and hashed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain, pairwise
from typing import Final, NamedTuple, Protocol

import msgspec

from tandem import prefix_blocks
from tandem.little_endian import TOKEN_ID_BYTES, to_bytes, to_numbers
from tandem.prefix_blocks import BLOCK_TOKENS, NUMBER_BYTES
from tandem.text.tokenizer import Around
from tandem.wire.prompt_chunks import NAME_BYTES, chunk_bytes, key_of, names_of
from tandem_frontend.openai.tokenizer import ModelTokenizer
from tandem_frontend.read_steps import ReadSteps

SEGMENT_CHARACTERS: Final = 2048
"""The fewest characters of a segment."""
_NAME_BYTES: Final = 16


class Segment(msgspec.Struct, frozen=True, array_like=True):
    token_ids: bytes
    """Four bytes each, the lowest first."""
    blocks: bytes
    """The numbers of the blocks (tandem/prefix_blocks.py) that end in the segment."""
    chunks: bytes
    """The names of the chunks (tandem/wire/prompt_chunks.py) that end in the segment."""

    @property
    def tokens(self) -> int:
        return len(self.token_ids) // TOKEN_ID_BYTES


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a prompt that need not be read again."""

    segments: int = 0
    tokens: int = 0
    block: bytes = b""
    """The number of its last whole block; empty: it has none."""
    chunk: bytes = b""
    """The name of its last whole chunk; empty: it has none."""
    unfinished: bytes = b""
    """The token ids behind that block and that chunk, packed."""
    check: bool = False
    """Nothing is known, and the segments' tokens are to be compared with the whole text's."""

    @staticmethod
    def of(segments: Sequence[Segment]) -> Known:
        tokens = sum(segment.tokens for segment in segments)
        left, tail = max(_behind_whole(tokens)), b""
        for segment in reversed(segments):
            if len(tail) >= left:
                break
            tail = segment.token_ids + tail
        return Known(
            segments=len(segments),
            tokens=tokens,
            block=next((s.blocks[-NUMBER_BYTES:] for s in reversed(segments) if s.blocks), b""),
            chunk=next((s.chunks[-NAME_BYTES:] for s in reversed(segments) if s.chunks), b""),
            unfinished=tail[len(tail) - left :],
        )


class PromptPrefixes(Protocol):
    """Knows the beginnings of one request's prompts."""

    def known(self, prompts: Sequence[Sequence[bytes]]) -> Sequence[Known]:
        """The known beginning of each prompt, whose segments have these names. Asked once."""


class ReadText(NamedTuple):
    """A prompt's text, tokenised from the first segment on that was not known."""

    tokens: int
    """The whole prompt's length."""
    segments: tuple[Segment, ...]
    """The last one ends with the prompt, and has no name."""
    differs: bool = False
    """The segments' tokens were not the text's; `segments` is the whole prompt, read at once."""


def read(
    tokenizer: ModelTokenizer,
    texts: Sequence[str],
    prefixes: PromptPrefixes,
    steps: ReadSteps,
    *,
    special_tokens: bool,
    model: str,
    cache_salt: str,
    lora_adapter: str,
) -> list[ReadText | None]:
    """Tokenise the prompts of one request; None: of a text without a seam. `special_tokens`: with
    those that the tokenizer puts around a text. `cache_salt` and `lora_adapter`: those by which
    caches know the prompts.
    """
    steps.skip()
    around = tokenizer.around if special_tokens else Around([], [])
    cuts = [tokenizer.cuts(text, SEGMENT_CHARACTERS) if around else [] for text in texts]
    if around is None or not any(cuts):
        return [None] * len(texts)
    root = prefix_blocks.root(cache_salt, lora_adapter)
    name = b"\0".join((root, model.encode(), to_bytes(array("I", around.before))))
    names = [list(_names(*each, name)) for each in zip(texts, cuts, strict=True) if each[1]]
    known = iter(prefixes.known(names))
    key = key_of(cache_salt)
    steps.end("find")
    return [
        _read(tokenizer, text, places, next(known), around, root, key, steps) if places else None
        for text, places in zip(texts, cuts, strict=True)
    ]


def _read(
    tokenizer: ModelTokenizer,
    text: str,
    cuts: Sequence[int],
    known: Known,
    around: Around,
    root: bytes,
    key: bytes,
    steps: ReadSteps,
) -> ReadText:
    start = cuts[known.segments - 1] if known.segments else 0
    places = pairwise([start, *cuts[known.segments :], len(text)])
    ids = tokenizer.encode_parts([text[begin:end] for begin, end in places])
    if not known.segments:
        ids[0] = around.before + ids[0]
    ids[-1] = ids[-1] + around.behind
    differs = False
    if known.check:
        special_tokens = around != ([], [])
        whole = tokenizer.encode(text, add_special_tokens=special_tokens)
        differs = whole != list(chain.from_iterable(ids))
        ids = [whole] if differs else ids
    steps.end("tokenize")
    tokens = known.tokens + sum(map(len, ids))
    segments = tuple(_segments(ids, known, root, key))
    steps.end("hash")
    return ReadText(tokens, segments, differs)


def _names(text: str, cuts: Sequence[int], root: bytes) -> Iterator[bytes]:
    """The name of each segment but the last, which has none."""
    digest = sha256(root)  # which CPUs have instructions for: 0.4 ms and not 1.0 for 500 KB
    for begin, end in pairwise([0, *cuts]):
        digest.update(text[begin:end].encode(errors="surrogatepass"))
        yield digest.digest()[:_NAME_BYTES]


def _segments(
    parts: Iterable[Sequence[int]], known: Known, root: bytes, key: bytes
) -> Iterator[Segment]:
    of_block, of_chunk = _behind_whole(known.tokens)
    block, chunk, size = known.block or root, known.chunk, len(known.unfinished)
    unfinished = to_numbers("I", known.unfinished[size - of_block :])
    unnamed = known.unfinished[size - of_chunk :]
    for ids in parts:
        token_ids = to_bytes(array("I", ids))
        unfinished.extend(ids)
        blocks = prefix_blocks.packed_after(block, unfinished)
        if blocks:
            block = blocks[-NUMBER_BYTES:]
            del unfinished[: len(blocks) // NUMBER_BYTES * BLOCK_TOKENS]
        unnamed += token_ids
        chunks = names_of(memoryview(unnamed), key, chunk)
        if chunks:
            chunk = chunks[-1]
            unnamed = unnamed[len(chunks) * chunk_bytes() :]
        yield Segment(token_ids, blocks, b"".join(chunks))


def _behind_whole(tokens: int) -> tuple[int, int]:
    """Bytes of token ids behind the last whole block, and behind the last whole chunk."""
    return tokens % BLOCK_TOKENS * TOKEN_ID_BYTES, tokens * TOKEN_ID_BYTES % chunk_bytes()
