"""Workers in a process of their own, for engines that must have one: the parent's side, and the
words that both sides use.

SGLang takes signals for itself, by which its processes report that one of them has died; in the
program's own process they would end the program.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tandem.errors import EngineError, StartError
from tandem.hooks.contract import Phase
from tandem.pool.process import ChildProcess, LostError
from tandem.worker.config import WorkerConfig
from tandem_executor.local.judging import Judges

_PROGRAM = "tandem_executor.local.__main__"
_CLOSE_SECONDS = 25.0
"""Seconds in which the process frees its engine's memory; then it is killed."""
_MESSAGE_BYTES = 2**32 - 1
"""As much as a length can say: an output that is judged may be long."""
READY, DIED, FAILED = "ready", "died", "failed"
"""What the process says: once that it serves, or why it cannot, and then why it does no longer.
All else that it says, and is told after its order, is of judging.py.
"""


@dataclass(frozen=True)
class ServingOrder:
    """What a process is to serve."""

    configs: Mapping[Phase, WorkerConfig]
    aggregated: bool


class WorkersProcess:
    """A process that serves an order until it is closed. `start` once, then `serving`."""

    def __init__(self, order: ServingOrder) -> None:
        self.order = order
        self._process = ChildProcess(
            max_message_bytes=_MESSAGE_BYTES, on_message=self._take, on_lost=self._find_lost
        )
        self.judges = Judges(self._process.send)
        self._said: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        """The process's words about itself."""

    async def start(self) -> None:
        """Do not wait until it serves. Raises StartError."""
        # The program's import path is that by which the process finds the operator's code.
        path = os.pathsep.join(filter(None, sys.path))
        try:
            await self._process.start(
                f"{__package__}.__main__", {"PYTHONPATH": path}, outlives=True
            )
        except LostError as error:
            reason = error.__cause__ or error
            raise StartError(f"a process for the engine cannot be started: {reason}") from error
        self._process.send(pickle.dumps(self.order))

    async def serving(self) -> None:
        """Until it serves. Raises StartError."""
        word, message = await self._said.get()
        if word != READY:
            raise StartError(message)

    async def died(self) -> EngineError:
        """Why it serves no longer."""
        _, message = await self._said.get()
        return EngineError(message)

    async def close(self) -> None:
        """Let the process free its engine's memory, and end the process in bounded time."""
        self.judges.close()
        await self._process.close(_CLOSE_SECONDS)

    def _take(self, said: bytes | bytearray) -> None:
        word, *values = json.loads(said)
        if word in (READY, DIED, FAILED):
            self._said.put_nowait((word, values[0]))
        else:
            self.judges.take(word, *values)

    def _find_lost(self) -> None:
        message = "the engine's process has ended; the lines printed before say more"
        self._said.put_nowait((DIED, message))


@asynccontextmanager
async def serving(
    orders: Sequence[ServingOrder],
) -> AsyncIterator[tuple[asyncio.Future[EngineError], Judges]]:
    """Each order is served by a process within the block; all start at the same time. Yields what
    is done once an engine has died, and where the program's classifiers judge what decode makes.
    Raises StartError.
    """
    async with AsyncExitStack() as closing:
        processes = [WorkersProcess(order) for order in orders]
        for each in processes:
            closing.push_async_callback(each.close)
            await each.start()
        for each in processes:
            await each.serving()
        died: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        tasks = [asyncio.get_running_loop().create_task(_follow(each, died)) for each in processes]
        try:
            yield died, next(each.judges for each in processes if "decode" in each.order.configs)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _follow(process: WorkersProcess, died: asyncio.Future[EngineError]) -> None:
    error = await process.died()
    if not died.done():
        died.set_result(error)
