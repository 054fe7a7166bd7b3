"""A process of one's own that does what could take any time or memory, and may be killed for it:
its parent asks over one Unix stream socket, and it answers.

A message is a length (4 bytes, little endian) and that many bytes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from tandem import config, launching

LENGTH_BYTES: Final = 4
_END_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
"""Between looks at its memory."""
_ENVIRONMENT: Final = {
    # Threads of a library would reserve so much address space that its limit says nothing.
    "MALLOC_ARENA_MAX": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


class LostError(Exception):
    """The process cannot be used any more: it could not start, has ended, or hangs."""


class ChildProcess:
    """The parent's end of one process, from its start to its end. By `ask` it is asked one thing at
    a time; by `say` and `hear` several.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        max_message_bytes: int,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._max_message_bytes = max_message_bytes

    @staticmethod
    async def start(
        program: str,
        environment: Mapping[str, str] | None = None,
        *,
        max_message_bytes: int,
    ) -> ChildProcess:
        """A process that runs the module `program`, with its end of a socket as the argument.
        `environment`: variables for it beside this process's. `max_message_bytes`: of what it says.

        Raises LostError.
        """
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        spawning = loop.run_in_executor(None, _spawn, program, theirs, environment or {})
        try:
            # Shielded: a process that was started is known, whatever becomes of who asked for it.
            process = await asyncio.shield(spawning)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except (OSError, asyncio.CancelledError) as error:
            ours.close()
            await asyncio.shield(_give_up(spawning))
            if isinstance(error, OSError):
                raise LostError(f"it cannot be started: {error}") from error
            raise
        return ChildProcess(process, reader, writer, max_message_bytes)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, by itself or by a signal."""
        return self._process.poll() is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(
        self, payload: bytes, *, seconds: float, memory_bytes: int | None = None
    ) -> bytes:
        """`memory_bytes`: what it may take for that, roughly, beside what it has; else it is
        killed.

        Raises LostError; then, and where it was cancelled, nothing but `end` may be called.
        """
        loop = asyncio.get_running_loop()
        watch: asyncio.TimerHandle | None = None

        def look(most: int) -> None:
            nonlocal watch
            if memory(self.pid)[1] > most:
                self._process.kill()
            else:
                watch = loop.call_later(_LOOK_SECONDS, look, most)

        try:
            if memory_bytes is not None:
                look(memory(self.pid)[1] + memory_bytes)
            async with asyncio.timeout(seconds):
                self.say(payload)
                return await self.hear()
        except TimeoutError as error:
            raise LostError(f"it does not answer within {seconds:g} s") from error
        finally:
            if watch is not None:
                watch.cancel()

    def say(self, payload: bytes) -> None:
        """Send a message, whose answer `hear` has among others; never waits. To a process that has
        ended it says nothing.
        """
        if not self._writer.is_closing():
            self._writer.write(len(payload).to_bytes(LENGTH_BYTES, "little"))
            self._writer.write(payload)

    async def hear(self) -> bytes:
        """The next message of the process. Raises LostError."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "little")
            if length > self._max_message_bytes:
                raise LostError(f"a message of {length} bytes")
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise LostError("it has ended") from error

    def kill(self) -> None:
        """Let `hear` find that the process has ended; `end` is to be called all the same."""
        self._process.kill()

    async def close(self, seconds: float) -> None:
        """Close the socket, so that the process ends by itself; kill it after `seconds`."""
        self._writer.close()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, seconds)
        await self.end()

    async def end(self) -> None:
        """Kill the process and the work that it does."""
        self._process.kill()
        self._writer.transport.abort()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _END_SECONDS)


# --- messages, of both sides ----------------------------------------------------------------------


def frame(payload: bytes) -> bytes:
    """A message as it travels."""
    return len(payload).to_bytes(LENGTH_BYTES, "little") + payload


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """The next message. None: the other side has gone."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


# --- the process's own side -----------------------------------------------------------------------


def receive(stream: socket.socket) -> bytes | None:
    """The next message. None: the parent has gone."""
    length = int.from_bytes(stream.recv(LENGTH_BYTES, socket.MSG_WAITALL), "little")
    payload = stream.recv(length, socket.MSG_WAITALL)
    return payload if length and len(payload) == length else None


def ignore_signals() -> None:
    """Those that go to the parent's whole group are the parent's: it drains, and needs this process
    for that.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def memory(process: int | str = "self") -> list[int]:
    """Bytes of a process: mapped, resident, and resident of files; 0 of one that has ended."""
    try:
        with open(f"/proc/{process}/statm") as file:
            pages = file.read().split()
    except OSError:
        pages = ["0"] * 3
    size = os.sysconf("SC_PAGE_SIZE")
    return [int(count) * size for count in pages[:3]]


async def _give_up(spawning: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """End the process that it comes to, if it comes to one."""
    with suppress(OSError, subprocess.TimeoutExpired):
        process = await spawning
        process.kill()
        await asyncio.to_thread(process.wait, _END_SECONDS)


def _spawn(
    program: str, theirs: socket.socket, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with theirs:
        return subprocess.Popen(
            launching.command(program, str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=config.environment({**environment, **_ENVIRONMENT}),
        )
