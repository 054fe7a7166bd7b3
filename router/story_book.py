"""The stories of requests that have ended, for whoever asks later: bounded in number and bytes.

Refused requests have a shelf of their own: a flood of them takes the place of no other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from router.core.story import MOST_OF_ONE_TRACE, Story

STORY_BYTES = 1700
"""Counted for a story, and its places in the book."""
SEQUENCE_BYTES = 300
"""Counted for each of its sequences."""
MOMENT_BYTES = 400
"""Counted for each of its moments: the largest is a pair with the candidates for it."""
REJECTION_BYTES = 16
"""Counted for each worker that would not do: all stories share what is said of it."""


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A story, and when its request ended, in seconds of the book's clock."""

    ended: float
    bytes: int
    story: Story


class StoryBook:
    """Keeps the last `most` stories of at most `most_bytes`, half of each for refused requests."""

    def __init__(
        self, most: int, most_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._ran = _Shelf(most - most // 2, most_bytes - most_bytes // 2)
        self._refused = _Shelf(most // 2, most_bytes // 2)

    def add(self, story: Story, *, refused: bool) -> None:
        """What has no trace id is not kept: nobody could ask for it."""
        shelf = self._refused if refused else self._ran
        if shelf.most and story.trace_id:
            shelf.add(Kept(self._clock(), size(story), story))

    def of(self, trace_id: str) -> list[tuple[float, Story]]:
        """Stories of the requests with that trace id and the seconds since they ended, the latest
        first.
        """
        found = [*self._ran.of(trace_id), *self._refused.of(trace_id)]
        found.sort(key=lambda kept: -kept.ended)
        return [(self._clock() - kept.ended, kept.story) for kept in found[:MOST_OF_ONE_TRACE]]

    @property
    def held(self) -> tuple[int, int]:
        """How many stories it keeps, and their bytes."""
        shelves = self._ran, self._refused
        return sum(len(each.kept) for each in shelves), sum(each.bytes for each in shelves)


class _Shelf:
    def __init__(self, most: int, most_bytes: int) -> None:
        self.most = most
        self.kept: deque[Kept] = deque()
        """In the order in which they came."""
        self.bytes = 0
        self._most_bytes = most_bytes
        self._by_trace: dict[str, tuple[Kept, ...]] = {}
        """Likewise. Tuples, as the garbage collector need not look into these."""

    def add(self, kept: Kept) -> None:
        """Push out the oldest as long as there is no room. What has room nowhere is not kept."""
        if kept.bytes > self._most_bytes:
            return
        while len(self.kept) >= self.most or self.bytes + kept.bytes > self._most_bytes:
            self._forget_oldest()
        self.kept.append(kept)
        self.bytes += kept.bytes
        trace_id = kept.story.trace_id
        self._by_trace[trace_id] = (*self._by_trace.get(trace_id, ()), kept)

    def of(self, trace_id: str) -> tuple[Kept, ...]:
        return self._by_trace.get(trace_id, ())[-MOST_OF_ONE_TRACE:]

    def _forget_oldest(self) -> None:
        oldest = self.kept.popleft()
        self.bytes -= oldest.bytes
        trace_id = oldest.story.trace_id
        if left := self._by_trace[trace_id][1:]:
            self._by_trace[trace_id] = left
        else:
            del self._by_trace[trace_id]


def size(story: Story) -> int:
    """No less than the memory that it takes."""
    moments = sum([len(each.moments) for each in story.sequences])
    rejected = 0 if story.rejected is None else len(story.rejected.workers)
    sequences = SEQUENCE_BYTES * len(story.sequences)
    return STORY_BYTES + sequences + MOMENT_BYTES * moments + REJECTION_BYTES * rejected
