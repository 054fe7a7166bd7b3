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
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from tandem import config, launching
from tandem.child_process import frame, read_message
from tandem.errors import EngineError, StartError
from tandem.hooks.contract import Phase
from tandem.worker.config import WorkerConfig
from tandem_local_executor.judging import Judges

_CLOSE_SECONDS = 25.0
"""Seconds in which the process frees its engine's memory; then it is killed."""
READY, DIED, FAILED = "ready", "died", "failed"
"""What the process says: once that it serves, or why it cannot, and then why it does no longer.
All else that it says, and is told after its order, is of local_executor/judging.py.
"""


@dataclass(frozen=True)
class Order:
    """What a process is to serve."""

    configs: Mapping[Phase, WorkerConfig]
    aggregated: bool


class WorkersProcess:
    """A process that serves an order until it is closed. `start` once, then `serving`."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.judges = Judges(self._send)
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Do not wait until it serves. Raises StartError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _spawn(theirs.fileno())
            except OSError as error:
                ours.close()
                raise StartError(f"a process for the engine cannot be started: {error}") from error
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._send(frame(pickle.dumps(self.order)))

    async def serving(self) -> None:
        """Until it serves. Raises StartError."""
        word, message = await self._said()
        if word != READY:
            raise StartError(message)

    async def died(self) -> EngineError:
        """Why it serves no longer."""
        _, message = await self._said()
        return EngineError(message)

    async def close(self) -> None:
        """Let the process free its engine's memory, and end the process in bounded time."""
        self.judges.close()
        if self._process is None:
            return
        with suppress(OSError):
            self._writer.write_eof()  # that is how it is told; a fork may hold the socket open
        self._writer.close()
        try:
            await asyncio.to_thread(self._process.wait, _CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def _said(self) -> tuple[str, str]:
        """The next that it says of itself. Until then, its outputs are judged."""
        while (said := await read_message(self._reader)) is not None:
            word, *values = json.loads(said)
            if word in (READY, DIED, FAILED):
                return word, values[0]
            self.judges.take(word, *values)
        return DIED, "the engine's process has ended; what it printed before says more"

    def _send(self, message: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(message)


@asynccontextmanager
async def serving(
    orders: Sequence[Order],
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


def _spawn(stream: int) -> subprocess.Popen[bytes]:
    """It is given the program's import path, by which it finds the operator's code."""
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        launching.command(f"{__package__}.__main__", str(stream)),
        stdin=subprocess.DEVNULL,
        pass_fds=(stream,),
        env=config.environment({"PYTHONPATH": path}),
    )
