"""What a worker's KV cache keeps of prompts that are done."""

from __future__ import annotations

from collections import OrderedDict

from tandem.engine.prefix_log import PrefixLog
from tandem.prefix_blocks import BLOCK_TOKENS, Blocks


class ReplayedPrefixCache:
    """A cache of so many blocks, those used longest ago given up first. Of one prompt the last
    block goes first, so that kept blocks always begins at a prompt's beginning.
    """

    def __init__(self, blocks: int) -> None:
        """`blocks`: how many it holds; 0: nothing is ever found."""
        self.log = PrefixLog(keeps=blocks > 0)
        self._capacity = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, prompt: Blocks) -> int:
        """How many blocks of a prompt's beginning it holds. They count as used now."""
        blocks, found = self._blocks, 0
        for each in prompt:
            if each not in blocks:
                break
            found += 1
        for each in reversed(prompt[:found]):
            blocks.move_to_end(each)
        return found

    def add(self, prompt: Blocks) -> None:
        """Take in a prompt that is done, as far as it fits."""
        blocks, kept = self._blocks, prompt[: self._capacity]
        for each in reversed(kept):
            blocks[each] = None
            blocks.move_to_end(each)
        self.log.enter(kept)
        over = len(blocks) - self._capacity
        self.log.leave([blocks.popitem(last=False)[0] for _ in range(over)])


class IdealCache:
    """What the best choice of workers could find: one cache that has each prompt as it comes."""

    def __init__(self, tokens: int) -> None:
        """`tokens`: how many it holds."""
        self._cache = ReplayedPrefixCache(tokens // BLOCK_TOKENS)
        self._prompt_tokens = self._cached_tokens = 0

    def take(self, prompt: Blocks, tokens: int) -> int:
        """A prompt of so many tokens comes. Returns how many of them were there."""
        found = min(self._cache.match(prompt) * BLOCK_TOKENS, tokens - 1)
        self._cached_tokens += found
        self._prompt_tokens += tokens
        self._cache.add(prompt)
        return found

    @property
    def hit_rate(self) -> float:
        """The share of prompt tokens that it has had."""
        return self._cached_tokens / self._prompt_tokens if self._prompt_tokens else 0.0
