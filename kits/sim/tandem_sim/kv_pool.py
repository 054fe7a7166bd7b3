"""The KV cache of the simulated model: pages of slots, one slot for each prompt token.

A slot's bytes follow from all tokens up to its own, as a real model's do: the prefix hash of token
i is the sum over j <= i of (token[j] + 1) * B**(i - j), modulo 2**64. A LoRA adapter makes other
bytes of the same tokens.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)


class KvPool:
    """Pages, who has them, and what is in them. Page numbers index `pages`."""

    def __init__(
        self, pages: Any, *, page_size: int, token_bytes: int, context_length: int
    ) -> None:
        """`pages`: uint8, shape (page count, page_size * token_bytes)."""
        self._pages = pages
        self.page_size = page_size
        self._token_bytes = token_bytes
        self._free = list(range(len(pages)))
        self._generations = [0] * len(pages)
        self._last = secrets.randbits(62)  # an engine that is started anew goes on with others
        self._powers = _powers(_BASE, context_length)
        self._inverse_powers = _powers(_INVERSE, context_length)
        words = token_bytes // 8
        # Odd, so that no bit of a prefix hash is lost in any word of its slot.
        self._spread = np.random.default_rng(1).integers(2**63, size=words, dtype=np.uint64) * 2 + 1

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def used_tokens(self) -> int:
        return (len(self._pages) - len(self._free)) * self.page_size

    @property
    def total_tokens(self) -> int:
        return len(self._pages) * self.page_size

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, or None where fewer are free."""
        if count > len(self._free):
            return None
        start = len(self._free) - count
        pages = self._free[start:]
        del self._free[start:]
        self._last += 1
        for page in pages:
            self._generations[page] = self._last
        return pages

    def release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._generations[page] = 0
        self._free.extend(pages)

    def generation(self, pages: Sequence[int]) -> int:
        """The number of the one `allocate` that gave out all these pages, which nobody has released
        since; 0: there is none.
        """
        first, *others = {self._generations[page] for page in pages} or {0}
        return 0 if others else first

    def fill(self, pages: Sequence[int], token_ids: Sequence[int], lora_adapter: str = "") -> int:
        """Compute the slots of a prompt, with an adapter; returns their CRC-32."""
        tokens = np.array(token_ids, dtype=np.uint64) + 1
        count = len(tokens)
        prefixes = self._powers[:count] * np.cumsum(tokens * self._inverse_powers[:count])
        prefixes ^= _number(lora_adapter)
        slots = (prefixes ^ (prefixes >> 29))[:, None] * self._spread
        block = np.zeros((len(pages), self._pages.shape[1]), dtype=np.uint8)
        block.reshape(-1)[: count * self._token_bytes] = slots.view(np.uint8).reshape(-1)
        self._pages[pages] = block
        return zlib.crc32(slots)

    def clear(self, pages: Sequence[int]) -> None:
        """Forget what these pages held."""
        self._pages[pages] = 0

    def contents(self, pages: Sequence[int]) -> Any:
        """A copy of what these pages hold."""
        return self._pages[pages]

    def restore(self, pages: Sequence[int], contents: Any) -> None:
        """Put back what `contents` copied of them."""
        self._pages[pages] = contents

    def checksum(self, pages: Sequence[int], token_count: int) -> int:
        """CRC-32 of the slots of a prompt, as they lie in memory now."""
        return zlib.crc32(self._pages[pages].reshape(-1)[: token_count * self._token_bytes])

    def slot(self, pages: Sequence[int], token: int) -> bytes:
        """The KV slot of the prompt's token number `token`, as it lies in memory now."""
        page, start = self._place(pages, token)
        return bytes(self._pages[page, start : start + self._token_bytes])

    def damage(self, pages: Sequence[int], token: int) -> None:
        """Flip the bits of one byte of a slot."""
        page, start = self._place(pages, token)
        self._pages[page, start] ^= 0xFF

    def _place(self, pages: Sequence[int], token: int) -> tuple[int, int]:
        page, offset = divmod(token, self.page_size)
        return pages[page], offset * self._token_bytes


def _number(lora_adapter: str) -> Any:
    """What tells the KV of an adapter from that of others; 0 for the model alone."""
    digest = hashlib.blake2b(lora_adapter.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little") if lora_adapter else 0)


def _powers(base: int, count: int) -> Any:
    factors: Any = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.cumprod(factors, dtype=np.uint64)
