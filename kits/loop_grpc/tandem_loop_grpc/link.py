"""A connection as a way for frames: what is written to it, whether its peer is there, and how it
ends. What the frames mean is not known here.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final, cast

from tandem_loop_grpc import frames
from tandem_loop_grpc.frames import Code
from tandem_loop_grpc.watching import ProcessWatch, watch_machine

_MOST_CONTROL_BYTES: Final = 1024 * 1024
"""How many bytes of answers to the peer's own frames may wait for a peer that does not read."""
_CLOSE_SECONDS: Final = 0.5


class Link(asyncio.Protocol):
    """One end of a connection, as a way for frames."""

    def __init__(self, silence_seconds: float) -> None:
        """A peer that says nothing for `silence_seconds`, though it was asked, is given up."""
        self.over = False
        """Whether the connection is lost, or is being closed."""
        self.peername: Any = None
        self._transport: asyncio.Transport | None = None
        self._paused = False
        """The transport takes no more for now."""
        self._gone = asyncio.Event()
        self._watch = ProcessWatch(
            silence_seconds,
            ping=self._ask,
            give_up=lambda: self.abort("the peer does not answer"),
        )

    # --- what the connection says for itself ---

    def first_bytes(self) -> bytes:
        """What this end sends before it has heard anything."""
        raise NotImplementedError

    def last_stream(self) -> int:
        """The last of the peer's streams that was worked on."""
        return 0

    def ended(self, reason: str) -> None:
        """Called once, when the connection is over."""
        raise NotImplementedError

    # --- the transport's ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.peername = transport.get_extra_info("peername")
        watch_machine(transport.get_extra_info("socket"))
        self._transport.write(self.first_bytes())
        self._watch.begin()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        self._end(str(error) if error else "the connection was closed")

    def eof_received(self) -> None:
        """Nothing is sent to a peer that sends nothing more: the transport closes."""

    # --- what is read and written ---

    @property
    def security(self) -> ssl.SSLObject | None:
        """The connection's TLS, for the peer's certificate; None: it has none."""
        found = None
        if self._transport is not None:
            found = self._transport.get_extra_info("ssl_object")
        return found

    def pause_reading(self) -> None:
        """What the peer sends waits."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """What was held back comes."""
        if self._transport is not None and not self.over:
            self._transport.resume_reading()

    def control(self, data: bytes) -> None:
        """Frames that no window bounds. A peer that has them made and does not read them is cut
        off.
        """
        self._write(data)
        if self._paused and self._waiting_bytes() > _MOST_CONTROL_BYTES + self.most_frame:
            self.abort("the peer does not read")

    most_frame = frames.LEAST_FRAME
    """Bytes of a frame that the peer takes."""

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self.over:
            self._transport.write(data)

    def _waiting_bytes(self) -> int:
        """What the transport has not sent."""
        waiting = 0
        if self._transport is not None:
            waiting = self._transport.get_write_buffer_size()
        return waiting

    def _ask(self) -> None:
        self.control(frames.frame(frames.PING, 0, 0, bytes(frames.PING_BYTES)))

    # --- how it ends ---

    def abort(self, reason: str) -> None:
        """Close without a word, and at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def close(self, code: Code = Code.NO_ERROR, reason: str = "the connection was closed") -> None:
        """Say so, and close once what was written has left."""
        if not self.over:
            self._write(frames.goaway(self.last_stream(), code, reason))
        if self._transport is not None:
            again = self._transport.is_closing()
            self._transport.close()
            # The peer may never read what waits. Of a TLS transport that is closed twice nobody can
            # ask how much waits.
            if not again and self._waiting_bytes():
                loop = asyncio.get_running_loop()
                loop.call_later(_CLOSE_SECONDS, self._transport.abort)
        self._end(reason)

    async def closed(self) -> None:
        """Close, and wait until it is, for a moment: a peer may never read what was written."""
        self.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._gone.wait()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if self.over:
            return
        self.over = True
        self._watch.stop()
        self.ended(reason)
