"""How messages travel between a process and its parent, over one Unix stream socket: a length
(4 bytes, little endian) and that many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

LENGTH_BYTES: Final = 4


class WireError(Exception):
    """The other side does not speak as it should."""


def frame(payload: bytes) -> bytes:
    """A message as it travels."""
    return b"".join(parts(payload))


def parts(payload: bytes) -> tuple[bytes, bytes]:
    """A message as it travels, for whoever writes several parts at once: a large one is not
    copied.
    """
    return len(payload).to_bytes(LENGTH_BYTES, "little"), payload


class Frames:
    """Cuts a stream into messages."""

    __slots__ = ("_most", "_needed", "_rest")

    def __init__(self, max_message_bytes: int) -> None:
        self._most = max_message_bytes
        self._rest = bytearray()
        self._needed = 0
        """Bytes that complete the first message of the rest, as far as is known."""

    def feed(self, data: bytes | bytearray) -> Iterator[bytes | bytearray]:
        """The messages that are complete with `data`. Raises WireError where one is too long."""
        if self._rest:
            self._rest += data
            data = self._rest
        start, size = 0, len(data)
        if size < self._needed:
            return
        self._needed = 0
        while size - start >= LENGTH_BYTES:
            begin = start + LENGTH_BYTES
            end = begin + int.from_bytes(data[start:begin], "little")
            if end - begin > self._most:
                raise WireError(f"a message of {end - begin} bytes")
            if end > size:
                self._needed = end - start
                break
            yield data[begin:end]
            start = end
        self._rest = bytearray(data[start:])
