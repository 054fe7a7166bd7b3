"""Starts the processes of the hook pool, and sees to it that none is left."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from tandem import launching

PROGRAM: Final = "tandem.hooks.runner.processes.process"
KILL_SECONDS: Final = 5.0
"""For the system to remove a killed process."""


class Spawner:
    """Starts processes in a thread of its own, which lives as long as they do: Linux kills a child
    that asks for it (PR_SET_PDEATHSIG) when the thread that started it ends.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hook-pool")
        self._running: set[subprocess.Popen[bytes]] = set()

    async def start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """A process with `theirs` as its end of the stream. Raises OSError."""
        loop = asyncio.get_running_loop()
        # Shielded: a process that was started is known, whatever becomes of who asked for it.
        return await asyncio.shield(loop.run_in_executor(self._thread, self._start, theirs))

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Forget a process that has ended and was collected."""
        self._running.discard(process)

    def close(self) -> None:
        """End what still runs, and the thread."""
        self._thread.shutdown()
        for process in self._running:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        with theirs:
            process = subprocess.Popen(
                launching.command(PROGRAM, str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        self._running.add(process)
        return process
