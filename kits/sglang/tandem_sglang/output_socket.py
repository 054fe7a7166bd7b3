"""How outputs come from a scheduler to a process of the same machine: by a Unix socket beside
ZeroMQ's, which SGLang has for them.

ZeroMQ reads in a thread of its own: a message wakes that first, and then the event loop
(docs/benchmarks.md).
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tandem.pool.frames import Frames, WireError, frame

_MOST_BYTES: Final = 2**30
"""The longest message that is read."""
_READ_BYTES: Final = 16 * 1024
"""The most of a turn of the loop."""
_MOST_PATH_BYTES: Final = 107
"""What the kernel takes."""
_LOCAL: Final = "ipc://"


def path_beside(inbox: Any) -> str | None:
    """Where outputs go beside this socket of ZeroMQ's, at either of its ends; None: by that one, as
    from another machine.
    """
    address = inbox.last_endpoint.decode().rstrip("\0")
    path = f"{address.removeprefix(_LOCAL)}.o"
    fits = len(os.fsencode(path)) <= _MOST_PATH_BYTES
    return path if address.startswith(_LOCAL) and fits else None


class OutputWriter:
    """A scheduler's end, with what SGLang uses of ZeroMQ's socket. It never waits: while a process
    is too busy to read, what is for it is kept, as ZeroMQ would, and sent by a thread. That is at
    most what its open requests may still generate.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket: socket.socket | None = None
        self._unsent: deque[bytes | memoryview] = deque()
        """A part of the first may have left."""
        self._lock = threading.Lock()

    def send(self, message: bytes, flags: int = 0) -> None:
        """To whoever listens. Nobody does when the process is gone, and its requests with it."""
        data = frame(message)
        with self._lock:
            if self._unsent:
                self._unsent.append(data)
            elif rest := self._left_of(data):
                self._unsent.append(rest)
                threading.Thread(target=self._flush, name="outputs", daemon=True).start()

    def send_pyobj(self, message: Any, flags: int = 0, protocol: int = -1) -> None:
        self.send(pickle.dumps(message, protocol))

    def close(self, linger: int | None = None) -> None:
        with self._lock:
            self._drop()

    def _left_of(self, data: bytes) -> bytes | memoryview:
        """What of a whole message could not be sent yet. A process that was started again listens
        anew.
        """
        for _ in range(2):
            try:
                return self._write(data)
            except OSError:
                self._drop()
        return b""

    def _write(self, data: bytes | memoryview) -> bytes | memoryview:
        """Returns what is left of it. Raises OSError where nobody listens any longer."""
        if self._socket is None:
            self._socket = self._connected()
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            return data
        return b"" if sent == len(data) else memoryview(data)[sent:]

    def _connected(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.setblocking(False)
            made.connect(self._path)
        except OSError:
            made.close()
            raise
        return made

    def _drop(self) -> None:
        """Drop the peer, who has read a part of a message and reads no more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._unsent.clear()

    def _flush(self) -> None:
        """Send what waits, until nothing does."""
        while self._unsent:
            with self._lock:
                if self._socket is None:
                    return
                writable = select.poll()
                writable.register(self._socket, select.POLLOUT)
            writable.poll()
            with self._lock:
                try:
                    self._write_on()
                except OSError:
                    self._drop()

    def _write_on(self) -> None:
        """As much of what waits as fits. Raises as `_write` does."""
        while self._unsent:
            if rest := self._write(self._unsent[0]):
                self._unsent[0] = rest
                return
            self._unsent.popleft()


class OutputReader:
    """A process's end. Lives on the event loop."""

    def __init__(self, path: str, take: Callable[[bytes], object]) -> None:
        """`take` gets each message, and raises nothing."""
        self._path = path
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._connections: set[socket.socket] = set()
        with suppress(FileNotFoundError):
            os.unlink(path)  # that of one that was killed
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.setblocking(False)
        self._listening.bind(path)
        os.chmod(path, 0o600)
        self._listening.listen()
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Listen no more. To be called on the event loop."""
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for connection in list(self._connections):
            self._forget(connection)
        with suppress(FileNotFoundError):
            os.unlink(self._path)

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listening.accept()
            connection.setblocking(False)
            self._connections.add(connection)
            frames = Frames(_MOST_BYTES)
            self._loop.add_reader(connection.fileno(), self._readable, connection, frames)

    def _readable(self, connection: socket.socket, frames: Frames) -> None:
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        try:
            for message in frames.feed(data):
                self._take(bytes(message))
        except WireError:
            data = b""  # whoever writes is none of SGLang's
        if not data:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._connections.discard(connection)
        self._loop.remove_reader(connection.fileno())
        connection.close()
