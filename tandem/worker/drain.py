"""The end of a worker's legs: they may finish, for a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from tandem.engine.base import EngineFigures
from tandem.errors import EngineError, WorkerError
from tandem.metrics import DrainMetrics
from tandem.worker.shell import Shell

log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.1
"""Between two looks at what is parked."""
SETTLE_SECONDS = 10.0
"""For the engine to let go of what the end of the drain cut off; then the process ends anyway."""


async def drain(
    shell: Shell,
    engine: asyncio.Task[EngineError],
    *,
    seconds: float,
    figures: Callable[[], EngineFigures],
    measured: DrainMetrics,
) -> None:
    """Let open legs finish and parked KV be fetched, fail legs that take longer than `seconds`, and
    return at once where the engine dies. The worker takes nothing new by now. `figures`: the
    engine's.
    """
    measured.begin()
    log.info("draining", extra={"count": len(shell)})
    clock = asyncio.get_running_loop().time
    ends_at = clock() + seconds
    await _idle_within(seconds, shell, engine)
    # Engines say nothing of what they free.
    while figures().parked and not engine.done() and clock() < ends_at:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)
    if len(shell) and not engine.done():
        measured.aborted = len(shell)
        log.warning("drain time ran out", extra={"count": measured.aborted})
        error = WorkerError("the worker shut down before the request had ended")
        shell.tell(partial(shell.core.abandon, error))
        await _idle_within(SETTLE_SECONDS, shell, engine)
    measured.end()
    log.info("drained", extra={"seconds": round(measured.seconds, 3)})


async def _idle_within(seconds: float, shell: Shell, engine: asyncio.Task[EngineError]) -> None:
    """Until no leg is open, the time is over, or the engine has died."""
    async with asyncio.TaskGroup() as tasks:
        idle = tasks.create_task(shell.idle.wait())
        await asyncio.wait({idle, engine}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
