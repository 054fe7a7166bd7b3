"""The self-clocking batcher: what is produced while the previous write is in flight leaves as one
message.

No timer: at low load each item leaves at once, at high load a message grows to hold all that one
write's time produced.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, Protocol, TypeVar

Message = TypeVar("Message")
Written = TypeVar("Written", contravariant=True)


class Writer(Protocol[Written]):
    """A call's answers, as a server writes them: see tandem_loop_grpc.serving.Context."""

    def put(self, message: Written) -> bool:
        """Write it. Returns whether the next one can be taken; if not, it can after `flushed`."""
        ...

    async def flushed(self) -> None: ...


class Outbox(Generic[Message]):
    """Feeds one outgoing stream. The owner adds to its own draft and calls `notify`; `take` turns
    the draft into a message.

    `take` is called only when the previous message has been handed to the transport, and must reset
    the draft. It may answer None when there is nothing to send after all.
    """

    def __init__(self, take: Callable[[], Message | None]) -> None:
        self._take = take
        self._ready = False
        self._closed = False
        self._stopped = False
        self._news: asyncio.Future[None] | None = None
        """`messages` waits for it."""
        self._writer: Writer[Message] | None = None
        """The writer that takes the next message."""
        self._full: asyncio.Future[bool] | None = None
        """The writer takes no more: True once it is through with this stream, False for now."""
        self._loop: asyncio.AbstractEventLoop
        """The writer's: to ask which one runs costs a system call."""
        self._planned = False

    def notify(self) -> None:
        """Say that there is something to send."""
        self._ready = True
        self._wake()

    def close(self) -> None:
        """Send the messages that wait, then end the stream."""
        self._closed = True
        self.notify()

    def stop(self) -> None:
        """Send nothing more. A message that is being written is written to its end: no status can
        be sent before that.
        """
        self._stopped = True
        self.notify()

    async def messages(self) -> AsyncIterator[Message]:
        """What a call's requests are taken from: it is asked for the next message once the previous
        one is written.
        """
        while True:
            while not self._ready:
                self._news = asyncio.get_running_loop().create_future()
                await self._news
            if self._stopped:
                return
            self._ready = False
            message = self._take()
            if message is not None:
                yield message
            if self._over:
                return

    async def write_to(self, writer: Writer[Message]) -> None:
        """Write the stream's messages, until it is over. Each leaves in the turn of the loop after
        the one in which it was notified of, without a task that has to be woken for it. Raises what
        `take` and the writer raise.
        """
        self._loop = asyncio.get_running_loop()
        over = False
        try:
            while not over:
                self._full = self._loop.create_future()
                self._writer = writer
                if self._ready or self._over:
                    self._wake()
                over = await self._full
                if not over:
                    await writer.flushed()
        finally:
            self._writer = None  # its call ends with its headers, without the garbage collector

    @property
    def _over(self) -> bool:
        return self._stopped or (self._closed and not self._ready)

    def _wake(self) -> None:
        if self._writer is not None:
            if not self._planned:
                self._planned = True
                self._loop.call_soon(self._write)
        elif self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _write(self) -> None:
        self._planned = False
        writer, full = self._writer, self._full
        if writer is None or full is None:
            return  # it is full, or whoever wrote to it has gone
        try:
            flows = True
            if self._ready and not self._stopped:
                self._ready = False
                message = self._take()
                flows = message is None or writer.put(message)
        except Exception as error:  # noqa: BLE001 - whoever writes the stream is told
            if not full.done():
                full.set_exception(error)
            return
        if flows and not (self._closed or self._stopped):
            return
        if full.done():
            return  # by what was written its task is cancelled
        if not flows:
            self._writer = None
            full.set_result(False)
        elif self._over:
            full.set_result(True)
