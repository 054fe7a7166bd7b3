"""How a connection ends so that its client can still read the last answer.

A socket that is closed while bytes of its client lie in it, or are on their way, resets the
connection, and what the client has not read by then is lost to it. So a connection that ends before
its client has sent all is closed in our direction only, and what still comes is dropped, until the
client closes too or a bound is reached.
"""

from __future__ import annotations

import asyncio
import contextlib

_DROPPED_BYTES = 64 * 1024 * 1024
_IDLE_SECONDS = 2.0


class LingeringClose:
    """The end of one connection, whose last bytes have been given to `transport`."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._left = _DROPPED_BYTES
        if transport.can_write_eof():  # not with TLS, where the answer's own length must do
            with contextlib.suppress(OSError):  # the client has reset it: reading on shows that
                transport.write_eof()
        transport.resume_reading()
        self._timer = loop.call_later(_IDLE_SECONDS, transport.close)

    def drop(self, size: int) -> None:
        """The client has sent `size` more bytes."""
        self._left -= size
        self._timer.cancel()
        if self._left < 0:
            self._transport.abort()
        else:
            self._timer = self._loop.call_later(_IDLE_SECONDS, self._transport.close)

    def over(self) -> None:
        """Stop waiting: the connection is gone."""
        self._timer.cancel()
