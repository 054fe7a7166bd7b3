"""What a peer may have done for it: a part of each turn of the loop, counted in what frames hold,
and frames that bring nothing only as many as go with those that bring something.

A loop reads a socket up to 32 times in a turn, and a frame may hold thousands of things, so neither
reads nor frames say how much work a peer makes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from tandem_loop_grpc.frames import Code, ProtocolError

# Units of work, some 10 µs each: a frame is one. What costs more counts as more.
OF_A_CONNECTION: Final = 256
"""Units that one connection may use in a turn of the loop."""
OF_A_LOOP: Final = 1024
"""Units that all connections of a loop may use together in a turn."""
LEAST: Final = 16
"""Units that a connection may use in its turn, however many others wait."""
OF_HEADERS: Final = 16
"""Units of a call that begins or ends; see `of_header_bytes` and `of_header_fields` too."""
OF_A_MESSAGE: Final = 2
"""Units of one that is read or handed on, beside its frame; and of a reader that is woken."""
_HEADER_BYTES: Final = 32
_HEADER_FIELDS: Final = 4
_STREAMS: Final = 8
_CUT_MESSAGES: Final = 8

FRAMES_FOR_NOTHING: Final = 1_000
"""Frames without content that a peer may send in a row: pings, resets, settings, windows and the
like.
"""
_FRAMES_FOR_NOTHING_A_SECOND: Final = 100
_BYTES_FOR_A_FRAME: Final = 8
"""Bytes of messages, either way, that let a peer send one such frame more: whoever reads opens
windows, and measures by pings how fast it may read.
"""
OF_SETTINGS: Final = 16
"""As how many frames for nothing SETTINGS count, which come once, and now and then again."""


def of_header_bytes(size: int) -> int:
    """Units of work of so many bytes of a header block."""
    return size // _HEADER_BYTES


def of_header_fields(count: int) -> int:
    """Units of work of so many fields of headers, which a byte each may name."""
    return count // _HEADER_FIELDS


def of_streams(count: int) -> int:
    """Units of work of a change to each of so many streams."""
    return count // _STREAMS


def of_cut_messages(count: int) -> int:
    """Units of work of cutting `count` messages out of received bytes."""
    return count // _CUT_MESSAGES


class LoopWork:
    """What the connections of one loop use together, and which of them waits for its next turn."""

    def __init__(self) -> None:
        self.turn = 0
        """Counts those turns in which much was done: only then is the next one waited for."""
        self.left = OF_A_LOOP
        self._waiting: deque[Callable[[], None]] = deque()
        self._planned = False

    def share(self) -> int:
        """Units that one connection may use in this turn."""
        fair = max(LEAST, min(OF_A_CONNECTION, OF_A_LOOP // (1 + len(self._waiting))))
        return min(fair, self.left)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn, in the order of those that wait."""
        self._waiting.append(go_on)
        self.renew()

    def renew(self) -> None:
        """Begin to count anew with the next turn."""
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._planned = False
        self.turn += 1
        self.left = min(self.left, 0) + OF_A_LOOP
        waiting, self._waiting = self._waiting, deque()
        try:
            while waiting and self.left > 0:
                waiting.popleft()()
        finally:
            self._waiting.extendleft(reversed(waiting))
            if self._waiting:
                self.renew()


_works: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWork] = WeakKeyDictionary()


class ConnectionWork:
    """One connection's part. What one thing costs too much is made up for in later turns."""

    def __init__(self) -> None:
        self.left = OF_A_CONNECTION
        """Units of this turn, as of the last look at what is `there`; a debt where negative. Who
        does work for the peer takes off what it costs.
        """
        self._told = self.left
        """As the loop knows it."""
        self._loop = _works.setdefault(asyncio.get_running_loop(), LoopWork())
        self._turn = self._loop.turn

    def there(self) -> int:
        """Units that may be used now; none where that is not positive."""
        loop = self._loop
        loop.left -= self._told - self.left
        if self._turn != loop.turn:
            self._turn = loop.turn
            self.left = min(self.left, 0) + loop.share()
        self._told = self.left
        if self.left < OF_A_CONNECTION // 2 or loop.left < OF_A_LOOP // 2:
            loop.renew()
        return min(self.left, loop.left)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called in a later turn."""
        self._loop.wait(go_on)

    async def later_turn(self) -> None:
        """Return in a later turn, in which the loop has some left."""
        turn = asyncio.get_running_loop().create_future()
        self._loop.wait(lambda: self._wake(turn))
        await turn
        self.there()

    def _wake(self, turn: asyncio.Future[None]) -> None:
        if not turn.done():  # else its task was cancelled
            self._loop.left -= OF_A_MESSAGE
            turn.set_result(None)


class Calm:
    """How many frames for nothing a peer may still send."""

    def __init__(self, clock: Callable[[], float], moved: Callable[[], int]) -> None:
        """`moved`: bytes of content that have gone either way so far."""
        self._clock = clock
        self._moved = moved
        self._left = float(FRAMES_FOR_NOTHING)
        self._as_of = clock(), moved()

    def use(self, frames: int = 1) -> None:
        """The peer has sent so many. Raises ProtocolError where that is too many."""
        self._left -= frames
        if self._left >= FRAMES_FOR_NOTHING // 2:
            return
        now, moved = self._clock(), self._moved()
        then, before = self._as_of
        self._as_of = now, moved
        earned = (now - then) * _FRAMES_FOR_NOTHING_A_SECOND + (moved - before) / _BYTES_FOR_A_FRAME
        self._left = min(self._left + earned, FRAMES_FOR_NOTHING)
        if self._left < 0:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "too many frames that bring nothing")
