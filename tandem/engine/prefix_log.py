"""What an engine's prefix cache holds, and what of it its routers have not been told yet.

An engine writes here which blocks of prompts (see tandem/prefix_blocks.py) enter and leave its
cache, and the worker which ones are about to: routers are told of both alike. Each router's stream
has a reader of its own, and a router that was told too little of late is told all anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from tandem.prefix_blocks import BLOCK_TOKENS, MOST_CHANGES, pack
from tandem.v1 import worker_pb2


class Owner(NamedTuple):
    """Whose prompts share blocks: those with the same cache salt and LoRA adapter."""

    cache_salt: str = ""
    lora_adapter: str = ""


class CachedTokens(NamedTuple):
    """The tokens of blocks that enter a cache one behind the other."""

    token_ids: Sequence[int]
    """BLOCK_TOKENS for each block, from the first block on; more may follow."""
    after: int | None
    """The block before the first one; None: the prompt begins with the first one."""
    owner: Owner


class EnteredBlock(NamedTuple):
    """A block that has entered a cache, for a watcher."""

    number: int
    after: int | None
    """The block before this one; None: the prompt begins with this one."""
    token_ids: Sequence[int]
    owner: Owner


class CacheWatcher(Protocol):
    """Is told of each block that enters or leaves a cache, at once and in order."""

    def entered(self, block: EnteredBlock) -> None: ...

    def left(self, number: int) -> None: ...

    def cleared(self) -> None:
        """Every block has left."""
        ...


class PrefixLog:
    """The blocks in a cache, in the order in which they came, and the latest changes."""

    def __init__(self, *, keeps: bool = True) -> None:
        """`keeps`: False for an engine without a prefix cache."""
        self.keeps = keeps
        self.held: dict[int, None] = {}
        self.coming: dict[int, int] = {}
        """Blocks that are about to enter, and how many prompts bring each."""
        self.latest: deque[int] = deque(maxlen=MOST_CHANGES)
        """Blocks that entered or left, the last one last."""
        self.changes = 0
        """How many blocks have entered or left."""
        self.watcher: CacheWatcher | None = None

    def enter(self, blocks: Sequence[int], cached: CachedTokens | None = None) -> None:
        """Note blocks as cached; some may be cached already. `cached`: their tokens, for the
        watcher; without tokens no watcher is told.
        """
        for place, each in enumerate(blocks):
            if each not in self.held:
                self.held[each] = None
                if each not in self.coming:
                    self._changed(each)
                if self.watcher is not None and cached is not None:
                    begin = place * BLOCK_TOKENS
                    after = blocks[place - 1] if place else cached.after
                    tokens = cached.token_ids[begin : begin + BLOCK_TOKENS]
                    self.watcher.entered(EnteredBlock(each, after, tokens, cached.owner))

    def leave(self, blocks: Iterable[int]) -> None:
        """Note blocks as dropped; some may never have been cached."""
        for each in blocks:
            if each in self.held:
                self._drop(each)
                if self.watcher is not None:
                    self.watcher.left(each)

    def expect(self, blocks: Iterable[int]) -> None:
        """A prompt brings these; give them back with `settle`."""
        for each in blocks:
            count = self.coming.get(each, 0)
            self.coming[each] = count + 1
            if not count and each not in self.held:
                self._changed(each)

    def settle(self, blocks: Iterable[int]) -> None:
        """End a prompt: its blocks are cached if they have entered."""
        for each in blocks:
            self.coming[each] -= 1
            if not self.coming[each]:
                del self.coming[each]
                if each not in self.held:
                    self._changed(each)

    def tells_of(self, block: int) -> bool:
        """Whether routers are to know of a block."""
        return block in self.held or block in self.coming

    def known(self) -> list[int]:
        """All that routers are to know of: what is about to enter, and then what is there, a
        prompt's beginning always before what follows: without it the rest is of no use.
        """
        return [*self.coming, *(each for each in self.held if each not in self.coming)]

    def clear(self) -> None:
        """Nothing is there any more."""
        for each in list(self.held):
            self._drop(each)
        if self.watcher is not None:
            self.watcher.cleared()

    def reader(self) -> PrefixReader:
        """A reader that has been told nothing yet."""
        return PrefixReader(self)

    def _drop(self, block: int) -> None:
        del self.held[block]
        if block not in self.coming:
            self._changed(block)

    def _changed(self, block: int) -> None:
        self.latest.append(block)
        self.changes += 1


class PrefixReader:
    """One router's place in a log."""

    def __init__(self, log: PrefixLog) -> None:
        self._log = log
        self._read: int | None = None
        """Changes that it knows of; None: it knows nothing."""
        self._untold: Iterator[int] = iter(())
        """What was there when it was told anew, and had no room in that report."""

    def take(self) -> worker_pb2.CacheChanges:
        """What it does not know yet: each block once, as it is now. Of a cache that holds more than
        a report may tell, a new reader learns the rest by the reports that follow.
        """
        log = self._log
        unread = len(log.latest) + 1 if self._read is None else log.changes - self._read
        self._read = log.changes
        if not log.keeps:
            return worker_pb2.CacheChanges(keeps_none=True)
        if unread > len(log.latest):
            self._untold = iter(log.known())
            first = pack(islice(self._untold, MOST_CHANGES))
            return worker_pb2.CacheChanges(anew=True, entered=first)
        changed = dict.fromkeys(islice(reversed(log.latest), unread))
        entered = [each for each in reversed(changed) if log.tells_of(each)]
        left = [each for each in changed if not log.tells_of(each)]
        untold = islice(self._untold, MOST_CHANGES - len(entered))
        entered += [each for each in untold if log.tells_of(each) and each not in changed]
        return worker_pb2.CacheChanges(entered=pack(entered), left=pack(left))
