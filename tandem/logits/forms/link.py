"""The worker's end of one process that compiles forms."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from tandem import config
from tandem.logits.forms.wire import (
    LENGTH_BYTES,
    MAX_MESSAGE_BYTES,
    PROGRAM,
    Answer,
    CompilerBoot,
    Order,
    answers,
    frame,
    readies,
)

MARGIN_SECONDS: Final = 5.0
"""Beyond a form's own time, until the process itself counts as hung."""
_ENVIRONMENT: Final = {
    # Threads of a compiler would reserve so much address space that its limit says nothing.
    "MALLOC_ARENA_MAX": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


class LostError(Exception):
    """The process cannot be used any more: it could not start, has ended, or hangs."""


class FormLink:
    """One process, from its start to its end."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def start(
        boot: CompilerBoot, environment: Mapping[str, str], *, seconds: float
    ) -> FormLink:
        """A process that can compile. `environment`: variables for it beside the worker's.

        Raises LostError.
        """
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.to_thread(_spawn, theirs, environment)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except OSError as error:
            ours.close()
            raise LostError(f"it cannot be started: {error}") from error
        link = FormLink(process, reader, writer)
        try:
            ready = readies.decode(await link._ask(frame(boot), seconds))
        except BaseException:
            await link.end()
            raise
        if ready.error:
            await link.end()
            raise LostError(ready.error)
        return link

    @property
    def pid(self) -> int:
        return self._process.pid

    async def compile(self, order: Order, *, seconds: float) -> Answer:
        """Raises LostError; then nothing but `end` may be called."""
        try:
            return answers.decode(await self._ask(frame(order), seconds + MARGIN_SECONDS))
        except msgspec.DecodeError as error:
            raise LostError("it says what it should not") from error

    async def end(self) -> None:
        """Kill it, with what it compiles."""
        self._process.kill()
        self._writer.transport.abort()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, MARGIN_SECONDS)

    async def _ask(self, message: bytes, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                self._writer.write(message)
                length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "little")
                if length > MAX_MESSAGE_BYTES:
                    raise LostError(f"a message of {length} bytes")
                return await self._reader.readexactly(length)
        except TimeoutError as error:
            raise LostError(f"it does not answer within {seconds:g} s") from error
        except (asyncio.IncompleteReadError, OSError) as error:
            raise LostError("it has ended") from error


def _spawn(theirs: socket.socket, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with theirs:
        return subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=config.environment({**environment, **_ENVIRONMENT}),
        )
