"""An engine's steps one by one, for whoever has a task to read them with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from tandem.engine.base import Engine, Step


async def steps(engine: Engine) -> AsyncGenerator[Step, None]:
    """All of them until the engine closes. To be closed before anybody else takes steps. Raises
    EngineError when the engine dies.
    """
    came: asyncio.Queue[Step | None] = asyncio.Queue()
    handing_on = asyncio.get_running_loop().create_task(engine.hand_on(came.put_nowait))
    handing_on.add_done_callback(lambda _: came.put_nowait(None))
    try:
        while (step := await came.get()) is not None:
            yield step
        handing_on.result()
    finally:
        handing_on.cancel()
