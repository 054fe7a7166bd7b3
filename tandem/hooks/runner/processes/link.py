"""The worker's end of one process of the hook pool: starts it, talks to it, notices its loss.

A process is lost when it has ended or closed its stream, says what it should not, does not read, or
answers nothing for longer than its hooks may take. It is killed then.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec

from tandem.errors import LoadError, StartError
from tandem.hooks.deferred import Ruling
from tandem.hooks.runner.processes.counters import ProcessCounters
from tandem.hooks.runner.processes.sequence import PoolSequence
from tandem.hooks.runner.processes.spawner import KILL_SECONDS, Spawner
from tandem.hooks.runner.processes.wire import (
    MAX_MESSAGE_BYTES,
    Answer,
    Batch,
    Reply,
    Started,
    decode_answer,
    encode,
)
from tandem.pool.frames import Frames, WireError, frame

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024
"""How much of earlier steps may wait beyond what the socket takes: more than the longest chunk. A
process that hangs is found out by its silence long before."""
READ_SECONDS: Final = 0.2
"""For what a process has written to be read, also by an event loop that was held up."""


class PoolLink(asyncio.Protocol):
    """One process, from its start to its loss."""

    def __init__(
        self,
        *,
        spawner: Spawner,
        counters: ProcessCounters,
        patience: Callable[[PoolLink], float],
        on_reply: Callable[[PoolLink, Reply], int],
        on_lost: Callable[[PoolLink], None],
    ) -> None:
        """`patience`: seconds within which something must be answered. `on_reply` returns how many
        Works were answered, and raises WireError.
        """
        self._spawner = spawner
        self._counters = counters
        self._patience = patience
        self._on_reply = on_reply
        self._on_lost = on_lost
        self.sequences: dict[int, PoolSequence[PoolLink]] = {}
        self.batch = _empty()
        """What `flush` sends."""
        self.rulings: list[Ruling] = []
        """Those that came and wait for more that belong to them."""
        self.owed = 0
        """Answers to Works and aborts that were sent."""
        self.up = False
        """It can judge."""
        self.resumable = False
        """Every hook of the process is resumable."""
        self.up_seconds = 0.0
        """How long it was up, once it is lost."""
        self.lost = ""
        """Why the process is of no use any more."""
        self.gone = asyncio.Event()
        """It is lost."""
        self.exited = asyncio.Event()
        self._settled = asyncio.Event()
        self._load_error = ""
        self._frames = Frames(MAX_MESSAGE_BYTES)
        self._up_at = self._heard_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._doubted = False
        """It is overdue, if there is no answer that was not read yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._transport: asyncio.Transport | None = None

    # --- lifecycle -------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The process's id, once it was started."""
        return None if self._process is None else self._process.pid

    async def start(self, boot: bytes, seconds: float) -> None:
        """Until the process can judge. Raises LoadError or StartError; then it is lost."""
        try:
            await self._spawn(boot)
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        except OSError as error:
            self.lose(f"it cannot be started: {error}")
        except TimeoutError:
            self.lose(f"it was not ready within {seconds:g} s")
        if self._load_error:
            self.lose("its hooks cannot be loaded")
            raise LoadError(self._load_error)
        if self.lost:
            await self.wait_exited()
            raise StartError(f"a process of the hook pool did not start: {self.lost}{self.status}")

    async def _spawn(self, boot: bytes) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            self._process = await self._spawner.start(theirs)
            self._pidfd = os.pidfd_open(self._process.pid)
            loop.add_reader(self._pidfd, self._on_exit)
            self._transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        except BaseException:
            ours.close()
            raise
        self._transport.write(frame(boot))
        self.flush()

    def finish(self) -> None:
        """Ask the process to end in order."""
        if self.up and self._transport is not None and not self.lost:
            self.up = False
            self._transport.write_eof()
        else:
            self.lose("it is not needed any more")

    def lose(self, why: str) -> None:
        """It is of no use any more. Kills it."""
        if self.lost:
            return
        self.up_seconds = monotonic() - self._up_at if self._up_at else 0.0
        self.lost, self.up = why, False
        self._counters.gone()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        if self._process is not None:
            self._process.kill()
        else:
            self.exited.set()
        self._settled.set()
        self.gone.set()
        self._on_lost(self)

    async def wait_exited(self, seconds: float = KILL_SECONDS) -> bool:
        """Whether it has ended within the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited.wait()
        return self.exited.is_set()

    @property
    def starting(self) -> bool:
        """It will judge what it is sent as soon as it can, or is lost in bounded time."""
        return not self._settled.is_set()

    @property
    def status(self) -> str:
        """How it ended, for people, with a comma before it; empty: not known."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return ""
        return f", exit status {code}" if code >= 0 else f", killed by signal {-code}"

    def _on_exit(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._spawner.forget(self._process)
        self.exited.set()
        if not self.lost:
            loop.call_later(READ_SECONDS, self.lose, "it has ended")

    # --- talk ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what was put into `batch`, if anything, once there is somebody to send it to."""
        batch = self.batch
        if self._transport is None or self.lost:
            return
        if not (batch.request_ids or batch.aborted):
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.lose("it does not read")
            return
        self.batch = _empty()
        if not self.owed:
            self._heard_at = monotonic()
        self.owed += len(batch.request_ids) + len(batch.aborted)
        self._transport.write(encode(batch))
        if self.up and self._timer is None:
            self._look()

    def data_received(self, data: bytes) -> None:
        self._heard_at = monotonic()
        try:
            for payload in self._frames.feed(data):
                self._on_answer(decode_answer(payload))
        except (WireError, msgspec.DecodeError) as error:
            self.lose(f"it says what it should not: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose("it has closed its stream")

    def _on_answer(self, answer: Answer) -> None:
        if isinstance(answer, Reply):
            self.owed -= answer.aborts + self._on_reply(self, answer)
        elif isinstance(answer, Started):
            self._load_error = answer.error
            self.up, self.resumable = not answer.error, answer.resumable
            self._up_at = self._heard_at
            self._settled.set()
            if self.owed:
                self._look()
        else:
            self._counters.update(answer)

    def _look(self) -> None:
        """Whether it answers. Looks again while something is owed."""
        self._timer = None
        if not self.owed:
            return
        left = self._heard_at + self._patience(self) - monotonic()
        if left <= 0 and self._doubted:
            self.lose("it does not answer")
            return
        self._doubted = left <= 0
        wait = READ_SECONDS if self._doubted else left
        self._timer = asyncio.get_running_loop().call_later(wait, self._look)


def _empty() -> Batch:
    return Batch([], [], [], [], [], [])
