"""Leases: memory that another process may touch is given back by a time that both sides know.

A decode engine offers pages for a room under a lease. Prefill starts no write into them, and none
of its writes is under way, later than the lease after it *read* the offer. Decode reuses them once
prefill has answered; without an answer, once the lease and MARGIN_SECONDS have passed since it
*sent* the offer. The margin covers the time an offer can travel on a stream that is still believed
alive: one whose machine is lost, or whose process is silent, is given up by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from tandem.errors import TandemError

MARGIN_SECONDS = 20.0
STREAM_SILENCE_SECONDS = 15.0
"""Or up to a quarter longer, of a prefill process that hangs."""
Key = TypeVar("Key", bound=Hashable)


class Leases(Generic[Key]):
    """The things held now, each with the time at which it is given back unasked."""

    def __init__(self) -> None:
        self._timers: dict[Key, tuple[asyncio.TimerHandle, Callable[[], object]]] = {}

    def grant(self, key: Key, seconds: float, expire: Callable[[], object]) -> None:
        """Hold `key`; `expire` is called after `seconds` unless it is settled before."""
        if key in self._timers:
            raise ValueError(f"{key!r} is leased already")

        def on_time() -> None:
            del self._timers[key]
            expire()

        timer = asyncio.get_running_loop().call_later(seconds, on_time)
        self._timers[key] = (timer, expire)

    def settle(self, key: Key) -> bool:
        """End a lease in good order. False where it ended before."""
        held = self._timers.pop(key, None)
        if held is None:
            return False
        held[0].cancel()
        return True

    def expire_all(self) -> None:
        """Give everything back now: the process is ending."""
        for key in list(self._timers):
            timer, expire = self._timers.pop(key)
            timer.cancel()
            expire()

    def __contains__(self, key: Key) -> bool:
        return key in self._timers

    def __iter__(self) -> Iterator[Key]:
        return iter(self._timers)

    def __len__(self) -> int:
        return len(self._timers)


class Remembered:
    """Rooms that one side gave up before the other had come, with the reason, for some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reasons: dict[int, TandemError] = {}
        self._times: Leases[int] = Leases()

    def remember(self, room: int, reason: TandemError) -> None:
        if room not in self._reasons:
            self._reasons[room] = reason
            self._times.grant(room, self._seconds, lambda: self._reasons.pop(room, None))

    def pop(self, room: int) -> TandemError | None:
        """The reason, if the room is remembered; it is forgotten with that."""
        self._times.settle(room)
        return self._reasons.pop(room, None)

    def clear(self) -> None:
        self._times.expire_all()
