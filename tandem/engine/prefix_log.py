"""What an engine's prefix cache holds, and what of it its routers have not been told yet.

An engine writes here which blocks of prompts (see tandem/prefix_blocks.py) enter and leave its
cache. Each router's stream has a reader of its own, and a router that was told too little of late
is told all anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from tandem.prefix_blocks import MOST_CHANGES, pack
from tandem.v1 import worker_pb2


class PrefixLog:
    """The blocks in a cache, in the order in which they came, and the latest changes."""

    def __init__(self, *, keeps: bool = True) -> None:
        """`keeps`: False for an engine without a prefix cache."""
        self.keeps = keeps
        self.held: dict[int, None] = {}
        self.latest: deque[int] = deque(maxlen=MOST_CHANGES)
        """Blocks that entered or left, the last one last."""
        self.changes = 0
        """How many there have been."""

    def enter(self, blocks: Iterable[int]) -> None:
        """These are there from now on; some may have been before."""
        for each in blocks:
            if each not in self.held:
                self.held[each] = None
                self._changed(each)

    def leave(self, blocks: Iterable[int]) -> None:
        """These are gone; some may never have been there."""
        for each in blocks:
            if each in self.held:
                del self.held[each]
                self._changed(each)

    def clear(self) -> None:
        """Nothing is there any more."""
        self.leave(list(self.held))

    def reader(self) -> PrefixReader:
        """For one that has been told nothing."""
        return PrefixReader(self)

    def _changed(self, block: int) -> None:
        self.latest.append(block)
        self.changes += 1


class PrefixReader:
    """One router's place in a log."""

    def __init__(self, log: PrefixLog) -> None:
        self._log = log
        self._read: int | None = None
        """Changes that it knows of; None: it knows nothing."""

    def take(self) -> worker_pb2.CacheChanges:
        """What it does not know yet: each block once, as it is now. Of a cache that holds more than
        a report may tell, a new reader learns what entered last.
        """
        log = self._log
        unread = len(log.latest) + 1 if self._read is None else log.changes - self._read
        self._read = log.changes
        if not log.keeps:
            return worker_pb2.CacheChanges(keeps_none=True)
        if unread > len(log.latest):
            known = [*islice(reversed(log.held), MOST_CHANGES)]
            return worker_pb2.CacheChanges(anew=True, entered=pack(reversed(known)))
        changed = dict.fromkeys(islice(reversed(log.latest), unread))
        entered = [each for each in reversed(changed) if each in log.held]
        left = [each for each in changed if each not in log.held]
        return worker_pb2.CacheChanges(entered=pack(entered), left=pack(left))
