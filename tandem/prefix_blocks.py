"""What prompts have in common, as numbers: one for each whole block of tokens from the start on.

A block's number follows from all tokens up to its end, so two prompts that share the number of a
block share all before it, and have the same salt and LoRA adapter. Frontends make them, workers say
of which ones they keep the KV, and routers compare them: none of these has to see the tokens of
another.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from tandem.little_endian import to_bytes, to_numbers

BLOCK_TOKENS = 64
"""Part of the wire: all components must agree."""
NUMBER_BYTES = 8
MAX_BLOCKS = 4096
"""What lies behind a prompt's first 262,144 tokens is not told."""
MOST_CHANGES = 16_384
"""A report of a worker's cache tells no more of each kind."""

Blocks = Sequence[int]
"""Numbers of 64 bits, from the prompt's start on."""


def packed(token_ids: Sequence[int], salt: str = "", lora_adapter: str = "") -> bytes:
    """The numbers of a prompt's blocks, 8 bytes each; a rest of fewer tokens has none.

    `salt`: that of the caches it may be found in (Task.cache_salt). `lora_adapter`: what computes
    its KV beside the model; another makes other KV of the same tokens.
    """
    most = MAX_BLOCKS * BLOCK_TOKENS
    return packed_after(root(salt, lora_adapter), array("I", token_ids[:most]))


def packed_after(number: bytes, token_ids: array[int]) -> bytes:
    """The numbers of the whole blocks of these tokens, which follow the block of that number."""
    count = len(token_ids) // BLOCK_TOKENS
    tokens = memoryview(to_bytes(token_ids[: count * BLOCK_TOKENS]))
    numbers = []
    size = BLOCK_TOKENS * token_ids.itemsize
    for start in range(0, len(tokens), size):
        number = _next(number, tokens[start : start + size])
        numbers.append(number)
    return b"".join(numbers)


def root(salt: str = "", lora_adapter: str = "") -> bytes:
    """What stands before the first block of every prompt with that salt and adapter."""
    key = blake2b(lora_adapter.encode()).digest() if lora_adapter else b""
    return blake2b(salt.encode(errors="surrogatepass"), digest_size=NUMBER_BYTES, key=key).digest()


def following(number: bytes, token_ids: Sequence[int]) -> bytes:
    """The number of one whole block, as it travels, from that of the block before it."""
    return _next(number, to_bytes(array("I", token_ids)))


def unpacked(data: bytes, most: int = MAX_BLOCKS) -> Blocks:
    """Numbers as they travelled. What is too much, or no whole number, is left out."""
    return to_numbers("Q", data[: min(len(data) // NUMBER_BYTES, most) * NUMBER_BYTES])


def pack(numbers: Iterable[int]) -> bytes:
    """The bytes by which numbers travel."""
    return to_bytes(array("Q", numbers))


def session_number(name: str, salt: str = "", lora_adapter: str = "") -> int:
    """What stands for a client's name of a session; never 0."""
    digest = blake2b(root(salt, lora_adapter), digest_size=NUMBER_BYTES)
    digest.update(name.encode(errors="surrogatepass"))
    return int.from_bytes(digest.digest(), "little") or 1


def session_text(number: int) -> str:
    """A session as logs and people are told of it: 16 hex digits, and never the client's name."""
    return f"{number:016x}"


def _next(number: bytes, tokens: bytes | memoryview) -> bytes:
    digest = blake2b(number, digest_size=NUMBER_BYTES)
    digest.update(tokens)
    return digest.digest()
