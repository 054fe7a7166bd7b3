"""What a process of the hook pool does: reads chunks, has them judged, writes the rulings back."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from tandem.hooks.chain import Chain
from tandem.hooks.deferred import Ruling, Work
from tandem.hooks.piece import Piece
from tandem.hooks.runner.async_ import AsyncRunner
from tandem.hooks.runner.inline import SLOW_SECONDS, InlineRunner
from tandem.hooks.runner.processes.counters import counts_of
from tandem.hooks.runner.processes.wire import (
    MAX_MESSAGE_BYTES,
    REPLY_CHARS,
    Batch,
    Changed,
    Reply,
    batches,
    encode,
)
from tandem.pool.frames import Frames, frame
from tandem.usercode.call import place_of

log = logging.getLogger(__name__)
COUNTS_SECONDS: Final = 1.0
READ_BYTES: Final = 64 * 1024
SPARE_BYTES: Final = 16 * 1024 * 1024
"""A process that cannot have so much more memory must not go on."""


class Sent(Piece):
    """A piece as the worker sent it. A chain that changes anything makes a new one."""


class Child:
    """Between the socket and what runs the chain."""

    def __init__(self, stream: socket.socket, chain: Chain) -> None:
        self._stream = stream
        self._chain = chain
        self._runner = AsyncRunner(chain) if chain.is_async else InlineRunner(chain)
        self._frames = Frames(MAX_MESSAGE_BYTES)
        self._traces: dict[int, str] = {}
        self._tokens: dict[int, int] = {}
        """How many tokens of each open sequence have come."""
        self._reply = Reply()
        self._reply_chars = 0
        self._reply_open = False
        """The last one said that more follows."""
        self._reply_soon = False
        self._counts_soon = False
        self._ended = asyncio.Event()
        self._out_of_memory = False
        self._memory_doubted = False
        self._pid = os.getpid()

    async def start(self) -> None:
        """Raises LoadError."""
        await self._runner.start(self._deliver)

    async def run(self) -> int:
        """Until the worker ends the stream, or this process must not go on. Returns the exit
        status.
        """
        loop = asyncio.get_running_loop()
        loop.add_reader(self._stream, self._on_readable)
        self._stream.setblocking(True)  # add_reader has changed it, and `_send` waits
        await self._ended.wait()
        loop.remove_reader(self._stream)
        if self._out_of_memory:
            log.critical("the hooks ran out of memory; see hooks.memory_mb")
            return 1
        await self._runner.close()
        self._send_counts()
        return 0

    # --- in --------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        self._end_if_forked()
        try:
            data = self._stream.recv(READ_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._ended.set()
            return
        try:
            for payload in self._frames.feed(data):
                self._take(batches.decode(payload))
        except MemoryError:  # what came is lost
            self._give_up()
        self._send_reply()
        if self._memory_doubted:
            self._memory_doubted = False
            self._look_for_memory()

    def _take(self, batch: Batch) -> None:
        for opened in batch.opened:
            self._tokens[opened.request_id] = 0
            self._traces[opened.request_id] = opened.trace_id
            self._runner.open(opened)
        for request_id in batch.aborted:
            self._abort(request_id)
        if batch.request_ids:
            self._runner.submit(self._works(batch))

    def _abort(self, request_id: int) -> None:
        self._tokens.pop(request_id, None)
        self._traces.pop(request_id, None)
        began = perf_counter()
        self._runner.abort(request_id)
        self._reply.aborts += 1
        if perf_counter() - began > SLOW_SECONDS:
            self._send_reply()

    def _works(self, batch: Batch) -> list[Work]:
        works: list[Work] = []
        tokens = self._tokens
        for request_id, text, token_ids in zip(
            batch.request_ids, batch.texts, batch.token_ids, strict=True
        ):
            first = tokens.get(request_id)
            if first is None:  # over: its token ids are not shown
                first = 0
            else:
                tokens[request_id] = first + len(token_ids)
            extras = range(first, first + len(token_ids))
            works.append(Work(request_id, Sent(text, token_ids, extras), False))
        for place in batch.finals:
            works[place].final = True
        return works

    # --- out -------------------------------------------------------------------------------------

    def _deliver(self, rulings: Sequence[Ruling]) -> None:
        """What async hooks bring in one turn of the event loop leaves together; others are asked
        and answered together anyway.
        """
        for ruling in rulings:
            reply = self._reply
            place = len(reply.request_ids)
            reply.request_ids.append(ruling.request_id)
            if ruling.piece.__class__ is not Sent or ruling.reason is not None:
                reply.changed.append(change := _changed(place, ruling))
                self._reply_chars += len(change.text or "")
            if ruling.final or ruling.reason is not None or ruling.error is not None:
                reply.seconds.append((place, ruling.seconds))
                self._over(ruling)
            if self._reply_chars > REPLY_CHARS:
                self._send_reply(more=True)
        if not self._chain.is_async:
            self._send_reply()
        elif not self._reply_soon:
            self._reply_soon = True
            asyncio.get_running_loop().call_soon(self._send_reply)

    def _over(self, ruling: Ruling) -> None:
        self._tokens.pop(ruling.request_id, None)
        trace_id = self._traces.pop(ruling.request_id, None)
        if ruling.error is None:
            return
        cause, ruling.error.__cause__ = ruling.error.__cause__, None  # it holds what the hook held
        log.warning(
            "a hook failed",
            extra={
                "trace_id": trace_id,
                "request_id": ruling.request_id,
                "reason": f"{ruling.error.message} {place_of(cause)}".strip(),
            },
        )
        if isinstance(cause, MemoryError):
            self._memory_doubted = True

    def _look_for_memory(self) -> None:
        """A hook has run out of memory. Where that is free again, only its sequence has failed."""
        gc.collect()
        try:
            bytearray(SPARE_BYTES)
        except MemoryError:
            self._give_up()

    def _give_up(self) -> None:
        """What filled the memory is still there: a new process begins without it."""
        self._out_of_memory = True
        self._ended.set()

    def _send_reply(self, *, more: bool = False) -> None:
        """`more`: other Rulings of the same step follow."""
        self._reply_soon = False
        reply = self._reply
        if not reply.request_ids and not reply.aborts and not self._reply_open:
            return
        self._reply, self._reply_chars = Reply(), 0
        self._reply_open = reply.more = more
        self._send(encode(reply))
        if not self._counts_soon:
            self._counts_soon = True
            asyncio.get_running_loop().call_later(COUNTS_SECONDS, self._send_counts)

    def _send_counts(self) -> None:
        self._counts_soon = False
        self._send(encode(counts_of(self._chain.hooks)))

    def _send(self, payload: bytes) -> None:
        """Waits for the worker, which always reads."""
        self._end_if_forked()
        try:
            self._stream.sendall(frame(payload))
        except ConnectionError:  # it is gone, and nobody is there to be told
            self._ended.set()

    def _end_if_forked(self) -> None:
        """A hook may fork and return in both processes. One of them is not known to the worker, and
        must not speak with it in the other's name.
        """
        if os.getpid() != self._pid:
            os._exit(1)


def _changed(place: int, ruling: Ruling) -> Changed:
    error = None if ruling.error is None else ruling.error.message
    piece = ruling.piece
    if piece is None:
        return Changed(place, None, None, ruling.reason, error)
    # A range is what came with this chunk; a chain that holds tokens makes lists of what it shows.
    positions = None if isinstance(piece.extras, range) else list(piece.extras or ())
    return Changed(place, piece.text, positions, ruling.reason, error)
