"""Which beginnings of prompts the simulated model need not compute again.

It knows blocks of prompts by their numbers (tandem/prefix_blocks.py), which differ by the salt of
the request and its LoRA adapter. What lies in KV pages is computed for each request all the same:
only the time is saved that a real model would save.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile

from tandem.engine.base import EngineRequest
from tandem.engine.prefix_log import CachedTokens, Owner, PrefixLog
from tandem.prefix_blocks import BLOCK_TOKENS, Blocks, packed, unpacked


class PrefixCache:
    """The blocks that were used last, as many as fit; of one prompt the last block goes first."""

    def __init__(self, tokens: int) -> None:
        self._most = tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.log = PrefixLog(keeps=self._most > 0)

    def blocks(self, request: EngineRequest) -> Blocks:
        """Blocks of the prompt; empty where the cache keeps nothing."""
        if not self._most:
            return ()
        return unpacked(packed(request.token_ids, request.cache_salt, request.lora_adapter))

    def cached_tokens(self, blocks: Blocks, prompt_tokens: int) -> int:
        """How many of a prompt's tokens need not be computed: the last one must."""
        found = sum(1 for _ in takewhile(self._blocks.__contains__, blocks))
        return min(found * BLOCK_TOKENS, prompt_tokens - 1)

    def use(self, request: EngineRequest, blocks: Blocks) -> None:
        """Cache the blocks of a computed prompt."""
        for each in reversed(blocks):
            self._blocks[each] = None
            self._blocks.move_to_end(each)
        owner = Owner(request.cache_salt, request.lora_adapter)
        self.log.enter(blocks, CachedTokens(request.token_ids, None, owner))
        gone = [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self._most)]
        self.log.leave(gone)
