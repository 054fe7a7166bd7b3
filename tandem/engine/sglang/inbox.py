"""How a process waits for what SGLang's schedulers send it, a message a step: by its event loop's
reader alone. pyzmq's own socket for asyncio asks ZeroMQ anew before and after each message, and
wakes the loop twice, which costs a decode worker a tenth of its CPU (docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import zmq


class Inbox:
    """What SGLang's tokenizer manager uses of its zmq.asyncio.Socket, in place of that. Lives on
    the event loop; one task receives.
    """

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._plain = zmq.Socket.shadow(socket.underlying)
        self._fd = self._plain.get(zmq.FD)
        self._loop = asyncio.get_running_loop()
        self._watched = False
        self._came: asyncio.Future[None] | None = None

    async def recv(self, flags: int = 0) -> bytes:
        """The next message, as SGLang packed it."""
        while True:
            try:
                message: bytes = self._plain.recv(flags | zmq.NOBLOCK)
                return message
            except zmq.Again:
                # Only now is it certain that the descriptor tells of the next one.
                await self._next()

    async def recv_pyobj(self, flags: int = 0) -> Any:
        """The same, where an operator has SGLang send pickles."""
        return pickle.loads(await self.recv(flags))

    def ignore(self) -> None:
        """Nobody receives any more. On the event loop, before `close`."""
        if self._watched:
            self._loop.remove_reader(self._fd)
            self._watched = False

    def close(self, linger: int | None = None) -> None:
        self._socket.close(linger)

    async def _next(self) -> None:
        self._came = self._loop.create_future()
        if not self._watched:
            self._loop.add_reader(self._fd, self._readable)
            self._watched = True
        await self._came

    def _readable(self) -> None:
        if self._came is None or self._came.done():
            self.ignore()  # it would be told again and again, until somebody receives
        else:
            self._came.set_result(None)
