"""Headers as they come on a connection, put together of frames and unpacked, and as they leave
(RFC 9113, 4.3, and RFC 7541).
"""

from __future__ import annotations

from typing import Final

import hpack

from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import Code, ProtocolError
from tandem_loop_grpc.headers import MOST_BYTES, Headers

_HARD_BYTES: Final = 8 * MOST_BYTES
"""Larger headers end the connection. Those below are unpacked, and refused alone where they are too
large: the table is what those that follow are read by.
"""
_FIELD_BYTES: Final = 32
"""Bytes that a field counts beside its name and value (RFC 9113, 6.5.2)."""
_MOST_TABLE_UPDATES: Final = 2
"""RFC 7541, 4.2. Each costs as much as the table is large."""
_NO_TABLE: Final = b"\x20"
"""A block that begins so keeps no table (RFC 7541, 6.3)."""
_LITERAL: Final = b"\x00"
"""A field that stands there with its name, and is kept in no table (RFC 7541, 6.2.2)."""
_LENGTH_IN_A_BYTE: Final = 0x7F

Whole = tuple[int, Headers | None, bool]
"""Stream, its headers, and whether it ends by them. None: they are larger than headers may be."""


def encoded(headers: Headers) -> bytes:
    """A block that needs no table: what a peer says of its own costs nothing, and is not kept."""
    parts = [_NO_TABLE]
    for name, value in headers:
        parts += (_LITERAL, _length(len(name)), name, _length(len(value)), value)
    return b"".join(parts)


def _length(size: int) -> bytes:
    """A number with a prefix of seven bits (RFC 7541, 5.1)."""
    if size < _LENGTH_IN_A_BYTE:
        return bytes((size,))
    parts = bytearray((_LENGTH_IN_A_BYTE,))
    size -= _LENGTH_IN_A_BYTE
    while size >= 0x80:
        parts.append(size & 0x7F | 0x80)
        size >>= 7
    parts.append(size)
    return bytes(parts)


class HeaderBlocks:
    """Header blocks that come on one connection, which share a table: each is unpacked, whatever
    becomes of it.
    """

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=_HARD_BYTES)
        self.opening: tuple[int, bool] | None = None
        """Stream, and whether it ends, of headers of which more is to come, before anything else.
        """
        self._block = bytearray()

    def begin(self, flags: int, number: int, payload: bytes) -> Whole | None:
        """A HEADERS frame; None: more is to come. Raises ProtocolError."""
        if not number:
            raise ProtocolError(Code.PROTOCOL_ERROR, "headers of no stream")
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.WITH_PRIORITY:
            frames.check_priority(number, payload[: frames.PRIORITY_BYTES])
            payload = payload[frames.PRIORITY_BYTES :]
        self.opening = number, bool(flags & frames.END_STREAM)
        return self._take(flags, payload)

    def go_on(self, flags: int, number: int, payload: bytes) -> Whole | None:
        """A CONTINUATION frame. Raises ProtocolError."""
        if self.opening is None or self.opening[0] != number:
            raise ProtocolError(Code.PROTOCOL_ERROR, "headers go on that did not begin")
        if not payload and not flags & frames.END_HEADERS:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "headers go on with nothing")
        return self._take(flags, payload)

    def _take(self, flags: int, payload: bytes) -> Whole | None:
        self._block += payload
        if len(self._block) > _HARD_BYTES:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"headers of more than {_HARD_BYTES} bytes")
        if not flags & frames.END_HEADERS:
            return None
        assert self.opening is not None
        (number, ends), self.opening = self.opening, None
        block, self._block = bytes(self._block), bytearray()
        return number, self._unpacked(block), ends

    def _unpacked(self, block: bytes) -> Headers | None:
        if frames.table_updates(block) > _MOST_TABLE_UPDATES:
            raise ProtocolError(Code.COMPRESSION_ERROR, "headers that resize their table for ever")
        try:
            headers: Headers = list(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except hpack.HPACKError as error:
            raise ProtocolError(Code.COMPRESSION_ERROR, "headers that cannot be read") from error
        size = sum(_FIELD_BYTES + len(name) + len(value) for name, value in headers)
        return headers if max(size, len(block)) <= MOST_BYTES else None
