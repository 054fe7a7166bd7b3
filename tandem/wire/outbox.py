"""The self-clocking batcher: what is produced while the previous write is in flight leaves as one
message.

No timer: at low load each item leaves at once, at high load a message grows to hold all that one
write's time produced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

Message = TypeVar("Message")


class Outbox(Generic[Message]):
    """Feeds one outgoing stream. The owner adds to its own draft and calls `notify`; `take` turns
    the draft into a message.

    `take` is called only when the previous message has been handed to the transport, and must reset
    the draft. It may answer None when there is nothing to send after all.
    """

    def __init__(self, take: Callable[[], Message | None]) -> None:
        self._take = take
        self._ready = asyncio.Event()
        self._closed = False
        self._stopped = False

    def notify(self) -> None:
        """There is something to send."""
        self._ready.set()

    def close(self) -> None:
        """Send what is there, then end the stream."""
        self._closed = True
        self._ready.set()

    def stop(self) -> None:
        """Send nothing more. A message that is being written is written to its end: no status can
        be sent before that.
        """
        self._stopped = True
        self._ready.set()

    async def messages(self) -> AsyncIterator[Message]:
        """What a stream is written from: it asks for the next message once the previous one is
        written.
        """
        while True:
            await self._ready.wait()
            if self._stopped:
                return
            self._ready.clear()
            message = self._take()
            if message is not None:
                yield message
            if self._closed and not self._ready.is_set():
                return
