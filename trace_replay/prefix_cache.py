"""What a worker's KV cache keeps of prompts that are done."""

from __future__ import annotations

from collections import OrderedDict

from router.core.values import CacheReport
from tandem.prefix_blocks import Blocks


class PrefixCache:
    """So many blocks, those used longest ago given up first. Of one prompt the last block goes
    first, so that what is kept always begins at a prompt's beginning.
    """

    def __init__(self, blocks: int) -> None:
        """`blocks`: how many it holds; 0: nothing is ever found."""
        self._capacity = blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._entered: dict[int, None] = {}
        self._left: dict[int, None] = {}
        """Since the last report, as what entered."""
        self._anew = True

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
        blocks = self._blocks
        for each in reversed(prompt[: self._capacity]):
            if each not in blocks:
                _note(each, self._entered, self._left)
            blocks[each] = None
            blocks.move_to_end(each)
        while len(blocks) > self._capacity:
            oldest, _ = blocks.popitem(last=False)
            _note(oldest, self._left, self._entered)

    def report(self) -> CacheReport:
        """What has entered and left since the last one. Where both happened, neither is told."""
        found = CacheReport(
            self._anew,
            tuple(self._entered),
            tuple(self._left),
            keeps_none=not self._capacity,
        )
        self._anew = False
        self._entered.clear()
        self._left.clear()
        return found


def _note(block: int, here: dict[int, None], there: dict[int, None]) -> None:
    """It is here now; if it was there since the last report, it is as it was before."""
    if block in there:
        del there[block]
    else:
        here[block] = None
