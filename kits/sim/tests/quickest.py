"""What something takes on a machine that may be busy."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

_TRIES = 20


async def quickest(act: Callable[[], Awaitable[object]], enough: float) -> float:
    """Seconds of the quickest of some tries, or of the first that took no more than `enough`. Other
    processes may slow some of them down, and hardly all.
    """
    best = float("inf")
    for _ in range(_TRIES):
        began = time.monotonic()
        await act()
        best = min(best, time.monotonic() - began)
        if best <= enough:
            break
    return best
