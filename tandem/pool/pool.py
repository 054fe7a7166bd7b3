"""Processes that answer one order at a time each.

    pool = Pool(PROGRAM, encoder.encode, replies, Limits(seconds=5, memory_bytes=512 << 20, ...))
    async with pool.process(pool.line_up(tenant)) as process:
        reply = await process.ask(order, boot)

The program says nothing by itself: it answers each boot with Loaded, and each order with one reply.
A process is started for the first order that needs one. It is killed when its order takes more than
it may, or nobody waits for the order any more; the next order starts another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from tandem.errors import QueueFullError
from tandem.pool.boot import Boot, loads
from tandem.pool.process import ONE_THREAD, ChildProcess, LostError
from tandem.pool.turns import PlaceInLine, Turns

Reply = TypeVar("Reply")


class UnloadedError(LostError):
    """The process could not start, or not do what its boot says."""


class GarbledError(LostError):
    """The process answers what it should not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """What a pool may take."""

    seconds: float
    """For one order, by the clock; then its process counts as hung."""
    start_seconds: float
    """For a process to start, and for each boot."""
    message_bytes: int
    """The longest reply."""
    most_waiting: int
    """Orders that wait for a process, of all keys."""
    full: str
    """The words of a QueueFullError, where too many orders wait."""
    memory_bytes: int | None = None
    """What one order may take, beside what the process has before it; None: the process itself sees
    to that.
    """
    wait_seconds: float | None = None
    """The longest that an order waits for a process; None: as long as there are orders before it.
    """


class Pool(Generic[Reply]):
    """Lives on an event loop, where nothing of it takes long."""

    def __init__(
        self,
        program: str,
        encode: Callable[[Any], bytes],
        replies: msgspec.msgpack.Decoder[Reply],
        limits: PoolLimits,
        *,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`program`: the module that the processes run. `encode`: of boots and orders.
        `environment`: variables for the processes beside this process's.
        """
        self._places = [
            PooledProcess(program, encode, replies, limits, {**(environment or {}), **ONE_THREAD})
            for _ in range(processes)
        ]
        self._free = self._places[::-1]
        self._limits = limits
        self.turns = Turns(processes, most_waiting=limits.most_waiting, full=limits.full)

    @asynccontextmanager
    async def process(self, turn: PlaceInLine) -> AsyncIterator[PooledProcess[Reply]]:
        """A process, when it is this turn of `turns`. Raises QueueFullError."""
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await self.turns.wait(turn)
        except TimeoutError:
            raise QueueFullError(self._limits.full) from None
        place = self._free.pop()
        try:
            yield place
        finally:
            self._free.append(place)
            self.turns.give_back()

    async def close(self) -> None:
        """Kill the processes, with what they do."""
        await asyncio.gather(*(place.close() for place in self._places))


class PooledProcess(Generic[Reply]):
    """Where one process of a pool runs, again and again."""

    def __init__(
        self,
        program: str,
        encode: Callable[[Any], bytes],
        replies: msgspec.msgpack.Decoder[Reply],
        limits: PoolLimits,
        environment: Mapping[str, str],
    ) -> None:
        self._program = program
        self._encode = encode
        self._replies = replies
        self._limits = limits
        self._environment = environment
        self._process: ChildProcess | None = None
        self._booted: dict[str, Boot] = {}
        """What the process knows, by name."""
        self._closed = False

    async def ask(self, order: Any, boot: Boot) -> Reply:
        """The reply to an order, by a process that knows `boot`.

        Raises LostError: UnloadedError where the order was not even asked, GarbledError where the
        order cannot be blamed.
        """
        limits = self._limits
        process = await self.ready(boot)
        try:
            payload = await process.ask(
                self._encode(order), seconds=limits.seconds, memory_bytes=limits.memory_bytes
            )
            return self._replies.decode(payload)
        except msgspec.DecodeError as error:
            await self.end()
            raise GarbledError("the process broke its protocol") from error
        except BaseException:
            await self.end()
            raise

    async def ready(self, boot: Boot) -> ChildProcess:
        """A process that knows `boot`. Raises UnloadedError."""
        if self._process is not None and self._process.has_ended:
            await self.end()
        if self._closed:
            raise UnloadedError("it is not needed any more")
        process, is_new = self._process, self._process is None
        if process is None:
            process = ChildProcess(max_message_bytes=self._limits.message_bytes)
            self._process = process
        try:
            if is_new:
                await process.start(self._program, self._environment)
            if self._booted.get(boot.name) is not boot:
                said = await process.ask(self._encode(boot), seconds=self._limits.start_seconds)
                if error := loads.decode(said).error:
                    raise LostError(error)
                self._booted[boot.name] = boot
        except BaseException as error:
            await self.end()
            if isinstance(error, LostError | msgspec.DecodeError):
                raise UnloadedError(str(error)) from error
            raise
        return process

    async def end(self) -> None:
        """Kill the process, if there is one, with what it does."""
        process, self._process = self._process, None
        self._booted.clear()
        if process is not None:
            await process.end()

    async def close(self) -> None:
        """Kill the process, and start no other."""
        self._closed = True
        await self.end()
