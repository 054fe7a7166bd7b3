"""Log lines that anybody can cause by sending something: a few of each kind are written, and the
others are counted.
"""

from __future__ import annotations

import asyncio
import logging

_LINES = 5
_SECONDS = 10.0


class Complaints:
    """At most so many lines of a kind in so many seconds. What was left out is never silent: how
    much it was is said when the time is over.
    """

    def __init__(
        self, log: logging.Logger, *, lines: int = _LINES, seconds: float = _SECONDS
    ) -> None:
        self._log = log
        self._lines = lines
        self._seconds = seconds
        self._said: dict[tuple[str, str], int] = {}
        """How often each kind was to be said since its time began."""
        self._timers: dict[tuple[str, str], asyncio.TimerHandle] = {}

    def warn(self, message: str, code: str, **fields: object) -> None:
        """`message` and `code` are the line's kind; neither may hold anything of a request."""
        kind = message, code
        said = self._said[kind] = self._said.get(kind, 0) + 1
        if said == 1:
            loop = asyncio.get_running_loop()
            self._timers[kind] = loop.call_later(self._seconds, self._end, kind)
        if said <= self._lines:
            self._log.warning(message, extra={"code": code, **fields})

    def close(self) -> None:
        """Say now what has not been said."""
        for kind, timer in list(self._timers.items()):
            timer.cancel()
            self._end(kind)

    def _end(self, kind: tuple[str, str]) -> None:
        del self._timers[kind]
        more = self._said.pop(kind) - self._lines
        if more > 0:
            message, code = kind
            extra = {"code": code, "count": more, "seconds": self._seconds}
            self._log.warning(f"{message}: more of the same", extra=extra)
