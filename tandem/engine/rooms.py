"""Time limits and ends of hand-overs, by their rooms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from tandem.errors import TandemError

MOST_ROOMS = 65_536
"""Rooms of one message of a peer, and rooms that an engine keeps in mind."""
Key = TypeVar("Key", bound=Hashable)


class KeyedTimers(Generic[Key]):
    """Timers by their keys. Each calls a function once, when its time is over."""

    def __init__(self) -> None:
        self._set: dict[Key, tuple[asyncio.TimerHandle, Callable[[], object]]] = {}

    def set(self, key: Key, seconds: float, call: Callable[[], object]) -> None:
        """Call `call` after so many seconds, in place of what was to be called for the key."""
        self.stop(key)

        def on_time() -> None:
            del self._set[key]
            call()

        self._set[key] = (asyncio.get_running_loop().call_later(seconds, on_time), call)

    def stop(self, key: Key) -> bool:
        """Call nothing for the key any more. False where nothing was to be called."""
        timer, _ = self._set.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return timer is not None

    def clear(self) -> None:
        """Call nothing any more."""
        for key in list(self._set):
            self.stop(key)

    def call_all(self) -> None:
        """Call everything now: the process is ending."""
        while self._set:
            key, (_, call) = next(iter(self._set.items()))
            self.stop(key)
            call()

    def __contains__(self, key: Key) -> bool:
        return key in self._set

    def __iter__(self) -> Iterator[Key]:
        return iter(self._set)

    def __len__(self) -> int:
        return len(self._set)


class EndedRooms:
    """Rooms that one side gave up before the other had come, with the reason, for some time; at
    most MOST_ROOMS.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reasons: dict[int, TandemError] = {}
        self._timers: KeyedTimers[int] = KeyedTimers()

    def add(self, room: int, reason: TandemError) -> None:
        """Remember a room. The first reason stays."""
        if room not in self._reasons and len(self._reasons) < MOST_ROOMS:
            self._reasons[room] = reason
            self._timers.set(room, self._seconds, lambda: self._reasons.pop(room))

    def pop(self, room: int) -> TandemError | None:
        """The reason, if the room is remembered; the room is forgotten then."""
        self._timers.stop(room)
        return self._reasons.pop(room, None)

    def clear(self) -> None:
        """Forget all rooms."""
        self._timers.clear()
        self._reasons.clear()
