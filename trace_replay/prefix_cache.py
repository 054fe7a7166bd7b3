"""What a worker's KV cache keeps of prompts that are done."""

from __future__ import annotations

from collections import OrderedDict

from tandem.engine.prefix_log import PrefixLog
from tandem.prefix_blocks import Blocks


class PrefixCache:
    """So many blocks, those used longest ago given up first. Of one prompt the last block goes
    first, so that what is kept always begins at a prompt's beginning.
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
