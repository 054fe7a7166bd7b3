"""What a process that may be killed does on its own side: it finds its socket and hears its
parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

from tandem.pool.frames import LENGTH_BYTES


def connect() -> socket.socket:
    """The socket to the parent, whose number is the program's argument."""
    stream = socket.socket(fileno=int(sys.argv[1]))
    stream.set_inheritable(False)
    return stream


def receive(stream: socket.socket) -> bytes | None:
    """Wait for the next message. None: the parent has gone."""
    length = int.from_bytes(stream.recv(LENGTH_BYTES, socket.MSG_WAITALL), "little")
    payload = stream.recv(length, socket.MSG_WAITALL)
    return payload if length and len(payload) == length else None


async def read_message(reader: asyncio.StreamReader) -> bytes | None:
    """The next message. None: the parent has gone."""
    try:
        length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "little")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


def ignore_signals() -> None:
    """Do nothing on signals that go to the parent's whole group: the parent drains, and needs this
    process for that. (They are handled and not ignored, which processes of hooks would inherit.)
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)


def memory(process: int | str = "self") -> list[int]:
    """Bytes of a process: mapped, resident, and resident of files; 0 of one that has ended."""
    try:
        with open(f"/proc/{process}/statm", "rb", buffering=0) as file:
            pages = file.read().split()
    except OSError:
        pages = [b"0"] * 3
    size = os.sysconf("SC_PAGE_SIZE")
    return [int(count) * size for count in pages[:3]]
