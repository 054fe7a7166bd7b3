"""The stories of requests that have ended, for whoever asks later: bounded in number and bytes.

Each component keeps its own part of a request. Refused requests have a shelf of their own: a flood
of them takes the place of no other.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Generic, Protocol, TypeVar

import msgspec

MOST_OF_ONE_TRACE = 16
"""Requests of one trace id that are told, the last ones: a client's many prompts share it."""
DEFAULT_MOST = 4096
DEFAULT_BYTES = 16 * 1024 * 1024
PLACE_BYTES = 500
"""Counted for a story beside its own bytes: its trace id, and its places in the book."""
_encode = msgspec.msgpack.Encoder().encode


class EndedStory(Protocol):
    """What every component's story has."""

    @property
    def trace_id(self) -> str:
        """Empty: nobody can ask for the story."""
        ...

    @property
    def outcome(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def delay(self) -> float:
        """Seconds that the request could have been shorter, by which the slowest are found."""
        ...


T = TypeVar("T", bound=EndedStory)


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A story, and when its request ended, in seconds of the book's clock. It is kept as bytes, as
    hardly any is asked for: some thirty objects for each would be freed when they lie in no cache
    any more.
    """

    ended: float
    trace_id: str
    delay: float
    story: bytes

    @property
    def bytes(self) -> int:
        """No less than the memory that it takes."""
        return PLACE_BYTES + len(self.story)


class StoryBook(Generic[T]):
    """Keeps the last `most` stories of at most `most_bytes`, half of each for refused requests."""

    def __init__(
        self,
        kind: type[T],
        most: int = DEFAULT_MOST,
        most_bytes: int = DEFAULT_BYTES,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kind`: the type of the stories, a struct."""
        self._clock = clock
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._ran = _Shelf(most - most // 2, most_bytes - most_bytes // 2)
        self._refused = _Shelf(most // 2, most_bytes // 2)

    def add(self, story: T, *, refused: bool) -> None:
        """What has no trace id is not kept: nobody could ask for it."""
        shelf = self._refused if refused else self._ran
        if shelf.most and story.trace_id:
            shelf.add(Kept(self._clock(), story.trace_id, story.delay, _encode(story)))

    def of(self, trace_id: str) -> list[tuple[float, T]]:
        """Stories of the requests with that trace id and the seconds since they ended, the latest
        first.
        """
        found = [*self._ran.of(trace_id), *self._refused.of(trace_id)]
        found.sort(key=lambda kept: -kept.ended)
        told = found[:MOST_OF_ONE_TRACE]
        return self._told(told)

    def recent(self, most: int) -> list[tuple[float, T]]:
        """The stories of the requests that ended last, the latest first."""
        last = (islice(reversed(each.kept), most) for each in (self._ran, self._refused))
        found = sorted(chain(*last), key=lambda kept: -kept.ended)
        return self._told(found[:most])

    def slowest(self, most: int) -> list[tuple[float, T]]:
        """The stories of the requests with the longest delay, the longest first. Looks at all."""
        kept = chain(self._ran.kept, self._refused.kept)
        return self._told(heapq.nlargest(most, kept, key=lambda each: each.delay))

    def _told(self, found: Iterable[Kept]) -> list[tuple[float, T]]:
        now = self._clock()
        return [(now - kept.ended, self._decode(kept.story)) for kept in found]

    @property
    def held(self) -> tuple[int, int]:
        """How many stories it keeps, and their bytes."""
        shelves = self._ran, self._refused
        return sum(len(each.kept) for each in shelves), sum(each.bytes for each in shelves)


def log_line(story: EndedStory) -> dict[str, object]:
    """The fields of a log line that holds a whole story, as JSON."""
    return {
        "trace_id": story.trace_id,
        "outcome": story.outcome,
        "seconds": story.seconds,
        "story": msgspec.json.encode(story).decode(),
    }


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
        size = kept.bytes
        if size > self._most_bytes:
            return
        while len(self.kept) >= self.most or self.bytes + size > self._most_bytes:
            self._forget_oldest()
        self.kept.append(kept)
        self.bytes += size
        self._by_trace[kept.trace_id] = (*self._by_trace.get(kept.trace_id, ()), kept)

    def of(self, trace_id: str) -> tuple[Kept, ...]:
        return self._by_trace.get(trace_id, ())[-MOST_OF_ONE_TRACE:]

    def _forget_oldest(self) -> None:
        oldest = self.kept.popleft()
        self.bytes -= oldest.bytes
        if left := self._by_trace[oldest.trace_id][1:]:
            self._by_trace[oldest.trace_id] = left
        else:
            del self._by_trace[oldest.trace_id]
