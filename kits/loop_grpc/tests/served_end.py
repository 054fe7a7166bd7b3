"""A server's end of a connection whose transport is the test."""

from __future__ import annotations

import asyncio
from typing import Any

import hpack
from echo_service import MOST_BYTES, Echo

from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import HEAD, HEAD_BYTES, frame
from tandem_loop_grpc.header_blocks import encoded
from tandem_loop_grpc.server import Listener, Served

GREETING = frames.PREFACE + frames.settings({})


def request(number: int, method: str = "Talk") -> bytes:
    """What begins a call."""
    block = encoded(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/test.Echo/{method}".encode()),
            (b"content-type", b"application/grpc"),
        ]
    )
    return frame(frames.HEADERS, frames.END_HEADERS, number, block)


class Recorder(asyncio.Transport):
    """Keeps what is written. What TLS has unpacked already comes though reading was paused."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.paused = False
        self.closed = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.sent += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def take(self) -> list[tuple[int, int, bytes]]:
        """Kind, stream and payload of each frame that was written."""
        found, place, data = [], 0, bytes(self.sent)
        self.sent.clear()
        while place < len(data):
            upper, lower, kind, _, stream = HEAD.unpack_from(data, place)
            start = place + HEAD_BYTES
            place = start + ((upper << 8) | lower)
            found.append((kind, stream, data[start:place]))
        return found


def served(echo: Echo | None = None, **options: Any) -> tuple[Served, Recorder]:
    """A server's end, and what it writes to. With `echo` it has its service."""
    listener = Listener(None, most_bytes=MOST_BYTES, **options)
    if echo is not None:
        echo.add_to(listener)
    connection, transport = Served(listener), Recorder()
    connection.connection_made(transport)
    return connection, transport


def said(block: bytes) -> dict[str, str]:
    """Headers as they leave: each block is read by itself."""
    return {str(name): str(value) for name, value in hpack.Decoder().decode(block)}
