"""Signs of life of a stream that has nothing to show: proxies cut what is silent for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

COMMENT = b": keep-alive\n\n"
"""Readers of server-sent events pass it over."""
_EARLY_SECONDS = 0.001
"""A timer may come so long before its time."""


class KeepAlive:
    """In the block that it is around, has a comment sent each time that a stream was silent for
    `seconds`; 0: never.

    Its one timer looks when something was sent last, and is not set anew whenever something is: a
    token costs a note of the time.
    """

    def __init__(
        self, seconds: float, *, silent_since: Callable[[], float], send: Callable[[], object]
    ) -> None:
        """`silent_since`: by the loop's clock; infinite where nothing may be sent yet."""
        self._seconds = seconds
        self._silent_since = silent_since
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._seconds:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = min(self._silent_since(), now) + self._seconds
        if due <= now + _EARLY_SECONDS:
            self._send()
            due = now + self._seconds
        self._timer = self._loop.call_at(due, self._look)
