"""What SGLang's processes send one of ours: taken by its event loop's reader, in the turn in which
it comes.

Rows of requests that go on, which are most of it, go to their taker at once. All else waits for
SGLang's own loop, which asks for it as for messages of a zmq.asyncio.Socket. That socket would ask
ZeroMQ anew before and after each message and wake the loop twice, and SGLang's loop once more
(docs/benchmarks.md). Outputs of schedulers of the same machine do not come by ZeroMQ at all
(output_socket.py).
"""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import zmq

from tandem_sglang import outputs
from tandem_sglang.output_socket import OutputReader, path_beside
from tandem_sglang.outputs import RunningRows

_MOST_A_TURN: Final = 64
"""Messages that are taken without a turn of the loop in between."""
_POLLIN: Final = int(zmq.POLLIN)


class Inbox:
    """What SGLang's tokenizer manager uses of its zmq.asyncio.Socket, in place of that. Lives on
    the event loop; one task receives.
    """

    def __init__(self, socket: Any, take: Callable[[RunningRows], None]) -> None:
        """`take` gets the rows. What it raises, and what ZeroMQ does, `recv` raises."""
        self._socket = socket
        self._take = take
        self._plain = zmq.Socket.shadow(socket.underlying)
        self._fd = self._plain.get(zmq.FD)
        self._loop = asyncio.get_running_loop()
        self._others: deque[bytes] = deque()
        self._failure: Exception | None = None
        self._came = asyncio.Event()
        self._ignored = False
        path = path_beside(self._plain)
        self._outputs = None if path is None else OutputReader(path, self._deliver)
        self._loop.add_reader(self._fd, self._readable)
        # The descriptor tells of nothing that was there before ZeroMQ was last asked.
        self._loop.call_soon(self._readable)

    async def recv(self, flags: int = 0) -> bytes:
        """The next message that holds no rows, as SGLang made it."""
        while not self._others:
            if self._failure is not None:
                raise self._failure
            self._came.clear()
            await self._came.wait()
        return self._others.popleft()

    async def recv_pyobj(self, flags: int = 0) -> Any:
        """`recv`, where SGLang sends pickles."""
        return pickle.loads(await self.recv(flags))

    def ignore(self) -> None:
        """Nobody receives any more. On the event loop, before `close`."""
        if self._ignored:
            return
        self._ignored = True
        self._loop.remove_reader(self._fd)
        if self._outputs is not None:
            self._outputs.close()

    def close(self, linger: int | None = None) -> None:
        self._socket.close(linger)

    def _readable(self) -> None:
        if self._ignored:
            return
        try:
            self._drain()
        except Exception as error:  # noqa: BLE001 - without what follows no request can end
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.ignore()
        self._failure = error
        self._came.set()

    def _drain(self) -> None:
        """Take what is there. Only when ZeroMQ has no more does the descriptor tell of the next."""
        for _ in range(_MOST_A_TURN):
            try:
                message = self._plain.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._deliver(message)
            if self._ignored:
                return
            if not self._plain.get(zmq.EVENTS) & _POLLIN:  # costs less than another Again
                return
        self._loop.call_soon(self._readable)

    def _deliver(self, message: bytes) -> None:
        """After a failure nothing is taken any more."""
        if self._ignored:
            return
        try:
            rows = outputs.unpacked(message)
            if rows is not None:
                self._take(rows)
            else:
                self._others.append(message)
                self._came.set()
        except Exception as error:  # noqa: BLE001 - likewise
            self._fail(error)
