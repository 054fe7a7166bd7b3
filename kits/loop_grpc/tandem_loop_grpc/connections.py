"""How many connections a listener keeps, of whom, and for how long."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import isfinite
from typing import Final

MOST_CONNECTIONS: Final = 4096
MOST_OF_A_CLIENT: Final = 1024
IDLE_SECONDS: Final = 300.0
AGE_SECONDS: Final = 3600.0
_AGE_SPREAD: Final = 0.1
"""Connections that began together do not all begin anew together."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """What a listener's clients may have."""

    most: int = MOST_CONNECTIONS
    """Connections of all."""
    most_of_a_client: int = MOST_OF_A_CLIENT
    """Connections of one address with the same names in its certificate."""
    idle_seconds: float = IDLE_SECONDS
    """A connection that has no call for so long is closed."""
    age_seconds: float = AGE_SECONDS
    """A connection takes new calls for so long, or up to a tenth less; those it has go on."""


class ConnectionCount:
    """How many are open, of whom."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._peers: Counter[Hashable] = Counter()

    def add(self, peer: Hashable) -> str:
        """One more, which is to be taken off again. Returns why it may not stay; "": it may."""
        self._peers[peer] += 1
        if self._peers.total() > self._limits.most:
            return "there are too many connections"
        if self._peers[peer] > self._limits.most_of_a_client:
            return "there are too many connections of this client"
        return ""

    def take_off(self, peer: Hashable) -> None:
        """A connection, or its peer's, is closed."""
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]


class Lifetime:
    """Says once that a connection has had no call for long, or is old."""

    def __init__(self, limits: ConnectionLimits, retire: Callable[[str], None]) -> None:
        self._idle_seconds = limits.idle_seconds
        self._retire = retire
        self._calls = 0
        self._idle: asyncio.TimerHandle | None = None
        self._old: asyncio.TimerHandle | None = None
        if isfinite(limits.age_seconds):
            seconds = limits.age_seconds * random.uniform(1 - _AGE_SPREAD, 1)
            loop = asyncio.get_running_loop()
            self._old = loop.call_later(seconds, self._end, "the connection is old")
        self._rest()

    def begin_call(self) -> None:
        """The connection has one call more."""
        self._calls += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def end_call(self) -> None:
        """The connection has one call less."""
        self._calls -= 1
        if not self._calls:
            self._rest()

    def stop(self) -> None:
        """A connection, or its peer's, is closed."""
        self._idle_seconds = float("inf")
        for timer in (self._idle, self._old):
            if timer is not None:
                timer.cancel()

    def _rest(self) -> None:
        if isfinite(self._idle_seconds):
            loop = asyncio.get_running_loop()
            reason = "the connection had no call for long"
            self._idle = loop.call_later(self._idle_seconds, self._end, reason)

    def _end(self, reason: str) -> None:
        self.stop()
        self._retire(reason)
