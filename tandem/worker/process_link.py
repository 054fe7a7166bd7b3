"""The first process's end of a further one of the same worker: it is started, asked and ended.

Questions and answers are Python values over one socket, each pair with a number: an answer may come
when nobody waits for it any more. Both ends are the same program, of one user.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from tandem.ids import counter

_LENGTH_BYTES = 4
_END_SECONDS = 5.0
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Join:
    """Join the engine with this ticket. Answered once it serves: Serving, or Refused."""

    ticket: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine has died. Answered with None."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain, and end. Answered with None. No signal: one more than Ctrl-C, which reaches all of a
    terminal's processes, would end it at once.
    """


@dataclass(frozen=True, slots=True)
class Live:
    """Answered with None, by an event loop that goes round."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Answered with the metrics, a list of families."""


Question = Join | Lost | Stop | Live | Scrape


@dataclass(frozen=True, slots=True)
class Serving:
    port: int


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


class UnansweredError(Exception):
    """The process has ended, or did not answer in time."""


class Channel:
    """Values over a stream socket, in the running loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def over(stream: socket.socket) -> Channel:
        return Channel(*await asyncio.open_unix_connection(sock=stream))

    async def send(self, value: Any) -> None:
        """Send a value. Raises OSError where the other end is gone."""
        data = pickle.dumps(value)
        self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
        await self._writer.drain()

    async def receive(self) -> Any:
        """Raises asyncio.IncompleteReadError or OSError where nobody is there any more."""
        length = await self._reader.readexactly(_LENGTH_BYTES)
        return pickle.loads(await self._reader.readexactly(int.from_bytes(length, "little")))

    def close(self) -> None:
        self._writer.transport.abort()


class FurtherProcess:
    """One process, from its start to its end."""

    def __init__(self, process: Any, channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._new_number = counter()
        self._ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._reading = loop.create_task(self._read())
        loop.add_reader(process.sentinel, self._on_end)

    @staticmethod
    async def start(target: Callable[..., None], arguments: Sequence[Any]) -> FurtherProcess:
        """A process that runs `target` with its socket and these arguments, all of which can be
        pickled. It is this thread's child: so it ends with the event loop's thread, and not with
        one that was lent.
        """
        ours, theirs = socket.socketpair()
        with ExitStack() as failed, theirs:
            failed.callback(ours.close)
            process = _SPAWN.Process(target=target, args=(theirs, os.getpid(), *arguments))
            process.start()
            failed.callback(process.kill)
            channel = await Channel.over(ours)
            failed.pop_all()
        return FurtherProcess(process, channel)

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    async def ask(self, question: Question, *, seconds: float) -> Any:
        """Its answer. Raises UnansweredError where it has ended, or does not answer within so
        long.
        """
        number = self._new_number()
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            if self._reading.done():
                raise UnansweredError("it has ended")
            async with asyncio.timeout(seconds):
                await self._channel.send((number, question))
                return await answer
        except TimeoutError as error:
            raise UnansweredError(f"it did not answer within {seconds:g} s") from error
        except OSError as error:
            raise UnansweredError("it has ended") from error
        finally:
            self._answers.pop(number, None)

    async def ended(self, seconds: float | None = None) -> bool:
        """Whether the process has ended, after `seconds` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        return self._ended.is_set()

    async def kill(self) -> int | None:
        """End it, if it has not. Returns its exit status: negative where a signal ended it."""
        if not self._ended.is_set():
            self._process.kill()
            await self.ended(_END_SECONDS)
        self._channel.close()
        self._reading.cancel()
        await asyncio.to_thread(self._process.join, _END_SECONDS)  # it closes its files first
        status: int | None = self._process.exitcode
        return status

    async def _read(self) -> None:
        try:
            while True:
                number, answer = await self._channel.receive()
                if (waiting := self._answers.get(number)) is not None and not waiting.done():
                    waiting.set_result(answer)
        except (asyncio.IncompleteReadError, OSError):
            for waiting in self._answers.values():
                if not waiting.done():
                    waiting.set_exception(UnansweredError("it has ended"))

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._ended.set()
