"""What vLLM's engine process says beside its outputs: how large its KV pages are, and that a
request's processors have failed.

Of a request that fails vLLM knows nothing: whatever a processor raises would end the engine. So the
reason goes by a socket of its own, before the step's outputs do, and the worker reads the notes
before it takes a step in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from pathlib import Path

import msgspec

from tandem import errors
from tandem.errors import TandemError
from tandem.v1 import common_pb2

_MOST_BYTES = 65_536
_SEND_SECONDS = 5.0
"""Then a note is lost: the worker has not read one for so long."""


class _Failed(msgspec.Struct, array_like=True, tag=True):
    """Why a request ends."""

    name: str
    """vLLM's name for the request."""
    error: bytes
    """A tandem.v1.Error."""


class _Pages(msgspec.Struct, array_like=True, tag=True):
    """The KV cache, where it is handed over."""

    page_bytes: int


class NoteReader:
    """The worker's end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-")
        self.address = str(Path(self._folder.name) / "notes")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)
        self._decoder = msgspec.msgpack.Decoder(_Failed | _Pages)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._messages: list[bytes] = []
        """Received, and not read yet."""
        self.page_bytes = 0
        """Bytes of a page of all layers; 0 until vLLM's process has said so."""

    def follow(self) -> None:
        """Receive notes as they come. Linux may queue ten alone; vLLM's process would wait with the
        next one, and its step with it, by which `read` is called.
        """
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._receive)

    def read(self) -> dict[str, TandemError]:
        """Return the requests that failed since the last read, by vLLM's names of them."""
        self._receive()
        messages, self._messages = self._messages, []
        found: dict[str, TandemError] = {}
        for message in messages:
            match self._decoder.decode(message):
                case _Failed(name, error):
                    found[name] = errors.from_proto(common_pb2.Error.FromString(error))
                case _Pages(page_bytes):
                    self.page_bytes = page_bytes
        return found

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._messages.append(self._socket.recv(_MOST_BYTES))

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
        self._socket.close()
        self._folder.cleanup()


class NoteWriter:
    """The end in vLLM's engine process."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(_SEND_SECONDS)
        self._socket.connect(address)

    def failed(self, name: str, error: TandemError) -> None:
        """A request is to end with that error instead of its next token."""
        self._send(_Failed(name, error.to_proto().SerializeToString()))

    def pages(self, page_bytes: int) -> None:
        """How large a page of all layers is, bytes."""
        self._send(_Pages(page_bytes))

    def _send(self, note: _Failed | _Pages) -> None:
        with contextlib.suppress(OSError):  # the worker has gone: so will this process
            self._socket.send(msgspec.msgpack.encode(note))
