"""The parent's side of one process that may be killed."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import msgspec

from tandem import config, launching
from tandem.pool.child import memory
from tandem.pool.frames import Frames, WireError, parts

KILL_SECONDS: Final = 5.0
"""For the system to remove a killed process."""
READ_SECONDS: Final = 0.2
"""For what an ended process has written to be read, also by an event loop that was held up."""
_LOOK_SECONDS: Final = 0.05
"""Between looks at a process's memory."""
ONE_THREAD: Final[Mapping[str, str]] = {
    # Threads of a library would reserve so much address space that its limit says nothing.
    "MALLOC_ARENA_MAX": "2",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}
"""The environment of processes that work in one thread."""
_SPAWNING: Final = ThreadPoolExecutor(1, thread_name_prefix="pool")
"""Starts all processes, and lives as long as they may: Linux kills a child that asks for it
(PR_SET_PDEATHSIG) when the thread that started it ends.
"""


class LostError(Exception):
    """The process cannot be used any more: it could not start, has ended, or hangs."""


class ChildProcess(asyncio.Protocol):
    """One process, from its start to its loss. What `ask` asks is answered one after the other;
    whatever else the process says goes to `on_message`.

    The process is lost once it has ended or closed its stream, says what it should not, or `lose`
    is called. A lost process is killed, and never comes back.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int,
        on_message: Callable[[bytes | bytearray], None] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """`max_message_bytes`: of what the process says. `on_message`: takes what answers no `ask`;
        it may raise WireError or msgspec.DecodeError, which lose the process.
        """
        self.lost = ""
        """Why the process is of no use any more; empty: it may be used."""
        self.gone = asyncio.Event()
        """The process is lost."""
        self.exited = asyncio.Event()
        """Nothing of the process is left."""
        self._on_message = on_message
        self._on_lost = on_lost
        self._frames = Frames(max_message_bytes)
        self._asked: deque[asyncio.Future[bytes | bytearray]] = deque()
        """What was not answered yet; answers come in this order."""
        self._ends_by_itself = False
        """The process ends by itself once its stream has: it has work of its own to end."""
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._transport: asyncio.Transport | None = None

    # --- its life --------------------------------------------------------------------------------

    async def start(
        self,
        program: str,
        environment: Mapping[str, str] | None = None,
        *,
        outlives: bool = False,
    ) -> None:
        """Run the module `program`, with its end of a socket as the argument. `environment`:
        variables for it beside this process's. `outlives`: the process ends by itself, some time
        after its stream; else it is killed then, and by the kernel with this process.

        Raises LostError. No process is left of a start that fails or is cancelled.
        """
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        parent = 0 if outlives else os.getpid()
        command = launching.command(program, str(theirs.fileno()), parent=parent)
        spawning = loop.run_in_executor(_SPAWNING, _spawn, command, theirs, environment or {})
        try:
            # Shielded: a process that was started is known, whatever becomes of who asked for it.
            self._watch(await asyncio.shield(spawning))
            if self.lost:  # the start was given up meanwhile
                raise LostError("it is not needed any more")
            self._transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        except (OSError, LostError, asyncio.CancelledError) as error:
            ours.close()
            await asyncio.shield(self._give_up(spawning))
            if isinstance(error, OSError):
                raise LostError(f"it cannot be started: {error}") from error
            raise

    @property
    def pid(self) -> int | None:
        """The process's id, once it was started."""
        return None if self._process is None else self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is lost, or has ended and that was not noticed yet."""
        return bool(self.lost) or (self._process is not None and self._process.poll() is not None)

    @property
    def status(self) -> str:
        """How the process ended, for people, with a comma before it; empty: not known."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return ""
        return f", exit status {code}" if code >= 0 else f", killed by signal {-code}"

    def lose(self, why: str) -> None:
        """Kill the process: it is of no use any more."""
        self._find_lost(why)
        if self._process is not None:
            self._process.kill()
        else:
            self.exited.set()

    def _find_lost(self, why: str) -> None:
        if self.lost:
            return
        self.lost = why
        if self._transport is not None:
            self._transport.abort()
        for asked in self._asked:
            if not asked.done():
                asked.set_exception(LostError(why))
        self.gone.set()
        if self._on_lost is not None:
            self._on_lost()

    async def wait_exited(self, seconds: float = KILL_SECONDS) -> bool:
        """Whether nothing of the process is left within the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited.wait()
        return self.exited.is_set()

    async def end(self) -> None:
        """Kill the process and the work that it does."""
        self.lose("it is not needed any more")
        await self.wait_exited()

    async def close(self, seconds: float) -> None:
        """Let the process end by itself, by the end of its stream; kill it after `seconds`."""
        self._ends_by_itself = True
        if self._transport is not None and not self.lost:
            self._transport.write_eof()  # and not closed: a fork may hold the socket open
        if self._process is not None:
            await self.wait_exited(seconds)
        await self.end()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.exited.clear()
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    async def _give_up(self, spawning: asyncio.Future[subprocess.Popen[bytes]]) -> None:
        """End the process that a start comes to, if it comes to one."""
        with suppress(OSError):
            process = await spawning
            if self._process is None:
                self._watch(process)
        await self.end()

    def _on_exit(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.exited.set()
        if not self.lost:
            loop.call_later(READ_SECONDS, self.lose, "it has ended")

    # --- what is said ----------------------------------------------------------------------------

    async def ask(
        self, payload: bytes, *, seconds: float, memory_bytes: int | None = None
    ) -> bytes | bytearray:
        """The answer to a message. `memory_bytes`: what the process may take for the answer,
        roughly, beside what it has; else it is killed.

        Raises LostError. A process that did not answer in time may yet: that answer is nobody's.
        """
        if self.lost:
            raise LostError(self.lost)
        loop = asyncio.get_running_loop()
        watch: asyncio.TimerHandle | None = None

        def look(most: int) -> None:
            nonlocal watch
            if memory(self.pid or 0)[1] > most:
                self.lose("it has ended")
            else:
                watch = loop.call_later(_LOOK_SECONDS, look, most)

        asked: asyncio.Future[bytes | bytearray] = loop.create_future()
        self._asked.append(asked)
        try:
            if memory_bytes is not None:
                most = memory(self.pid or 0)[1] + memory_bytes
                watch = loop.call_later(_LOOK_SECONDS, look, most)
            async with asyncio.timeout(seconds):
                self.send(payload)
                return await asked
        except TimeoutError as error:
            raise LostError(f"it does not answer within {seconds:g} s") from error
        finally:
            if watch is not None:
                watch.cancel()

    def send(self, payload: bytes) -> None:
        """Send a message; never waits. To a process that is lost it sends nothing."""
        if self._transport is not None and not self.lost:
            self._transport.writelines(parts(payload))

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.feed(data):
                if self._asked:
                    self._answer(payload)
                elif self._on_message is not None:
                    self._on_message(payload)
                else:
                    raise WireError("an answer that nobody asked for")
        except (WireError, msgspec.DecodeError) as error:
            self.lose(f"the process broke its protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ends_by_itself:
            self._find_lost("it has ended")
        else:
            self.lose("it has ended")

    def _answer(self, payload: bytes | bytearray) -> None:
        asked = self._asked.popleft()
        if not asked.done():  # or nobody waits for it any more
            asked.set_result(payload)


def _spawn(
    command: Sequence[str], theirs: socket.socket, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    with theirs:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=config.environment(environment),
        )
