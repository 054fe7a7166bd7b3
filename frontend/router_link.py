"""The frontend's one stream to its router: dials, dials again when it breaks, and batches what goes
out.

What the messages mean is not known here; see switchboard.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from tandem.errors import QueueFullError, RouterLostError
from tandem.v1 import router_pb2, router_pb2_grpc
from tandem.wire.grpc import open_channel
from tandem.wire.outbox import Outbox

log = logging.getLogger(__name__)

_GREETING_SECONDS = 10.0
"""A router says its fleet as soon as a stream opens; one that does not is no router."""
_FIRST_BACKOFF_SECONDS = 0.1
_LAST_BACKOFF_SECONDS = 2.0
_DRAFT_BYTES = 256 * 1024 * 1024
"""Unsent prompts beyond this mean that the router does not read: more are refused."""
_MESSAGE_BYTES = 16 * 1024 * 1024
"""Prompts beyond this wait for the next message, well below tandem.wire.grpc.MAX_MESSAGE_BYTES."""


class Receiver(Protocol):
    """Who is told what the router says."""

    def receive(self, message: router_pb2.RouterMessage) -> None:
        """Raises ValueError or DecodeError where it breaks the protocol: the stream ends."""
        ...

    def lost(self) -> None:
        """The stream is down; the router has dropped all that came by it."""
        ...


class _Conversation:
    """One stream's outgoing half."""

    def __init__(self) -> None:
        self._submits: dict[int, router_pb2.Submit] = {}
        self._submit_bytes = 0
        self._cancels: list[int] = []
        self.outbox: Outbox[router_pb2.FrontendMessage] = Outbox(self._take)

    def submit(self, submits: Sequence[router_pb2.Submit]) -> None:
        """Raises QueueFullError while too much waits to be sent."""
        if self._submit_bytes > _DRAFT_BYTES:
            raise QueueFullError("The router does not take requests; try again later")
        for submit in submits:
            self._submits[submit.first_sequence] = submit
            self._submit_bytes += len(submit.task)
        self.outbox.notify()

    def cancel(self, first_sequences: Sequence[int]) -> None:
        """Tell the router, unless the submit has not left yet: then neither does."""
        sent = []
        for first in first_sequences:
            if submit := self._submits.pop(first, None):
                self._submit_bytes -= len(submit.task)
            else:
                sent.append(first)
        if sent:
            self._cancels.extend(sent)
            self.outbox.notify()

    def _take(self) -> router_pb2.FrontendMessage | None:
        cancels, self._cancels = self._cancels, []
        submits, size = [], 0
        while self._submits and size < _MESSAGE_BYTES:
            submit = self._submits.pop(next(iter(self._submits)))
            submits.append(submit)
            size += len(submit.task)
        self._submit_bytes -= size
        if self._submits:
            self.outbox.notify()
        if not submits and not cancels:
            return None
        return router_pb2.FrontendMessage(submit=submits, cancel=cancels)


class RouterLink:
    """Keeps one stream to the router at `address` ("host:port") for as long as `run` runs."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._conversation: _Conversation | None = None
        self._complaint = ""

    @property
    def connected(self) -> bool:
        return self._conversation is not None

    def submit(self, submits: Sequence[router_pb2.Submit]) -> None:
        """Send without waiting.

        Raises RouterLostError while there is no stream, QueueFullError while it is clogged.
        """
        if self._conversation is None:
            raise RouterLostError("The router is not reachable; try again")
        self._conversation.submit(submits)

    def cancel(self, first_sequences: Sequence[int]) -> None:
        """Cancel requests by their first sequence. Without a stream there is nothing to cancel."""
        if self._conversation is not None:
            self._conversation.cancel(first_sequences)

    async def run(self, receiver: Receiver) -> None:
        """Hold the stream until cancelled."""
        backoff = _FIRST_BACKOFF_SECONDS
        async with open_channel(self._address) as channel:
            stub = router_pb2_grpc.RouterStub(channel)
            while True:
                if await self._converse(stub, receiver):
                    backoff = _FIRST_BACKOFF_SECONDS
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)

    async def _converse(self, stub: router_pb2_grpc.RouterAsyncStub, receiver: Receiver) -> bool:
        """One stream, until it breaks. Answers whether the router was reached at all."""
        conversation = _Conversation()
        call = stub.Connect(conversation.outbox.messages())
        try:
            await self._listen(call.__aiter__(), conversation, receiver)
            reason = "the router ended it"
        except TimeoutError:
            reason = "the router did not greet"
        except (ValueError, DecodeError) as error:
            reason = f"the router broke the protocol: {error}"
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        finally:
            reached = self._conversation is not None
            self._conversation = None
            conversation.outbox.close()
            call.cancel()
            if reached:
                receiver.lost()
        if reached or reason != self._complaint:  # not again at each dial
            extra = {"address": self._address, "reason": reason}
            log.warning("no stream to the router", extra=extra)
        self._complaint = reason
        return reached

    async def _listen(
        self,
        messages: AsyncIterator[router_pb2.RouterMessage],
        conversation: _Conversation,
        receiver: Receiver,
    ) -> None:
        async with asyncio.timeout(_GREETING_SECONDS):
            greeting = await anext(messages, None)
        if greeting is None:
            return
        self._conversation = conversation
        log.info("connected to the router", extra={"address": self._address})
        receiver.receive(greeting)
        async for message in messages:
            receiver.receive(message)
