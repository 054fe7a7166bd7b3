"""Headers as they come on a connection: put together of frames, and unpacked (RFC 9113, 4.3)."""

from __future__ import annotations

from typing import Final

import hpack

from tandem.wire.rpc import frames
from tandem.wire.rpc.frames import Code, ProtocolError
from tandem.wire.rpc.headers import MOST_BYTES, Headers

_PRIORITY_BYTES: Final = 5
_MOST_TABLE_UPDATES: Final = 2
"""RFC 7541, 4.2. Each costs as much as the table is large."""

Whole = tuple[int, Headers, bool]
"""Stream, its headers, and whether it ends by them."""


class HeaderBlocks:
    """Those of one connection, which share a table: each is unpacked, whatever becomes of it."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=MOST_BYTES)
        self.opening: tuple[int, bool] | None = None
        """Stream, and whether it ends, of headers of which more is to come, before anything else.
        """
        self._block = bytearray()

    def begin(self, flags: int, number: int, payload: bytes) -> Whole | None:
        """A HEADERS frame; None: more is to come. Raises ProtocolError."""
        if flags & frames.PADDED:
            payload = frames.unpadded(payload)
        if flags & frames.WITH_PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "a priority of another size")
            payload = payload[_PRIORITY_BYTES:]
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
        if len(self._block) > MOST_BYTES:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, f"headers of more than {MOST_BYTES} bytes")
        if not flags & frames.END_HEADERS:
            return None
        assert self.opening is not None
        (number, ends), self.opening = self.opening, None
        block, self._block = bytes(self._block), bytearray()
        return number, self._unpacked(block), ends

    def _unpacked(self, block: bytes) -> Headers:
        if frames.table_updates(block) > _MOST_TABLE_UPDATES:
            raise ProtocolError(Code.COMPRESSION_ERROR, "headers that resize their table for ever")
        try:
            return list(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except hpack.HPACKError as error:
            raise ProtocolError(Code.COMPRESSION_ERROR, "headers that cannot be read") from error
