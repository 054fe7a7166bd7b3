"""Whether a peer that is to say something now and then still does."""

from __future__ import annotations

import asyncio
from math import isfinite
from types import TracebackType

SILENCE_SECONDS = 10.0
"""Where nothing else is set."""
LOOKS = 4
"""In how many looks in a row nothing may have come."""


class Silence:
    """Raises TimeoutError in the block that it is around once nothing was `heard` for
    `seconds`, or up to a quarter longer; for no finite number of them: never.

    It is measured by the turns of the own loop: a process that was paused finds what its peer said
    meanwhile in the socket, and has not looked for it.
    """

    def __init__(self, seconds: float) -> None:
        self._pause = seconds / LOOKS
        self.heard = True
        """The peer has said something since the last look; to be set with whatever it says."""
        self._looks = 0
        self._limit = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """At least so long nothing has been heard, in quarters of the bound."""
        return self._looks * self._pause if self._looks else 0.0

    async def __aenter__(self) -> Silence:
        await self._limit.__aenter__()
        self._look_later()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _look(self) -> None:
        self._looks = 0 if self.heard else self._looks + 1
        self.heard = False
        if self._looks < LOOKS:
            self._look_later()
        else:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def _look_later(self) -> None:
        if isfinite(self._pause):
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._look)
