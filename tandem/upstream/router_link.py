"""The way to one router: a stream for what is new, and after it the next.

The address may stand for several routers, as a Kubernetes Service does: each dial is a connection
of its own. What the messages mean is not known here; see demultiplexer.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf
from typing import Any, Protocol

import grpc
from google.protobuf.message import DecodeError

from tandem.byte_budget import ByteBudget
from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.router_stream import RouterStream
from tandem.v1 import router_pb2
from tandem.wire import frames
from tandem.wire.frames import Part
from tandem.wire.grpc import open_channel
from tandem.wire.prompt_chunks import SentChunks
from tandem.wire.silence import Silence
from tandem.wire.tls import PeerTls

log = logging.getLogger(__name__)

_MISSED_HEARTBEATS = 3
"""How many heartbeats of a router are missed before the router is given up."""
_GREETING_SECONDS = 5.0
"""A router says its fleet as soon as a stream opens; one that does not is no router."""
_FIRST_BACKOFF_SECONDS = 0.1
_LAST_BACKOFF_SECONDS = 2.0
_STEADY_SECONDS = 1.0
"""A stream that lasted so long ends a row of failures."""
MAX_OLD_STREAMS = 8
"""At once; the oldest beyond them is closed, whatever is open by it."""
_ENDED = "the router ended it"
_CONNECT = f"/{router_pb2.DESCRIPTOR.services_by_name['Router'].full_name}/Connect"


class Receiver(Protocol):
    """Who is told what routers say."""

    def opened(self, stream: RouterStream) -> None:
        """A router takes what is new by this stream, until it drains or ends."""

    def receive(self, stream: RouterStream, message: Part | router_pb2.RouterMessage) -> None:
        """Raises ValueError or DecodeError where it breaks the protocol: the stream ends."""

    def unsent(self, firsts: Sequence[int]) -> None:
        """First sequences of what had not left when its router began to drain."""

    def ended(self, stream: RouterStream, *, drained: bool) -> None:
        """An opened stream is down, and its router has dropped all that was open by it. `drained`:
        in good order, so that what has not ended had never been admitted.
        """


class OldStreams:
    """Streams to routers that drain: each is kept until what is open by it has ended."""

    def __init__(self, metrics: UpstreamMetrics) -> None:
        self._metrics = metrics
        self._holding: dict[RouterStream, asyncio.Task[None]] = {}

    def add(self, stream: RouterStream, holding: asyncio.Task[None]) -> None:
        """`holding` holds the stream, and ends it when it is cancelled."""
        log.info("the router drains: new requests go by another stream")
        self._holding[stream] = holding
        self._metrics.old.set(len(self._holding))
        holding.add_done_callback(lambda _: self._forget(stream))
        stream.when_empty(holding.cancel)
        if len(self._holding) > MAX_OLD_STREAMS:
            log.warning("too many routers drain at once: the oldest stream is closed")
            next(iter(self._holding.values())).cancel()

    def _forget(self, stream: RouterStream) -> None:
        del self._holding[stream]
        self._metrics.old.set(len(self._holding))


@dataclass(eq=False)
class RouterLink:
    """Keeps a stream to the router at `address`, "host:port"."""

    address: str
    metrics: UpstreamMetrics
    budget: ByteBudget
    """Holds what waits to be sent."""
    old: OldStreams
    """Keeps the streams of a router that drains."""
    _: KW_ONLY
    silence_seconds: float
    """A router that promised heartbeats and is silent for so long is given up."""
    tls: PeerTls | None
    _complaint: str = field(default="", init=False)

    async def run(
        self,
        receiver: Receiver,
        group: asyncio.TaskGroup,
        stays: Callable[[str, RouterStream], bool],
    ) -> None:
        """Hold streams, one after the other, while `stays` says so. `group` gets their tasks."""
        loop = asyncio.get_running_loop()
        backoff = _FIRST_BACKOFF_SECONDS
        while True:
            began = loop.time()
            stream = RouterStream(self.budget, loop.time)
            holding = group.create_task(self._hold(stream, receiver))
            await stream.over.wait()
            self.metrics.left(stream)
            if stream.draining:
                self.old.add(stream, holding)
            steady = loop.time() - began >= _STEADY_SECONDS
            if steady:
                backoff = _FIRST_BACKOFF_SECONDS
            if not (steady and stream.draining):  # else its place is to be taken at once
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, _LAST_BACKOFF_SECONDS)
            if not stays(self.address, stream):
                return

    async def _hold(self, stream: RouterStream, receiver: Receiver) -> None:
        """One stream, on a channel of its own, from its dial to its end."""
        async with open_channel(self.address, self.tls, role="router") as channel:
            connect = channel.stream_stream(
                _CONNECT,
                request_serializer=router_pb2.FrontendMessage.SerializeToString,
                response_deserializer=_read,
            )
            call = connect(stream.outbox.messages())
            reason = ""
            try:
                reason = await self._listen(call, stream, receiver)
            except TimeoutError:
                silent = f"the router said nothing for {self.silence_seconds:g} seconds"
                reason = silent if stream.opened else "the router did not greet"
            except (ValueError, DecodeError) as error:
                reason = f"the router broke the protocol: {error}"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except Exception:  # whatever a router says costs its stream, and no more
                reason = "the frontend failed; see the frontend's log"
                log.exception("a message of the router could not be handled")
            finally:
                stream.outbox.close()
                stream.over.set()
                call.cancel()
                if stream.opened:
                    receiver.ended(stream, drained=stream.draining and reason == _ENDED)
                stream.close()
        self._complain(stream, reason)

    async def _listen(self, call: Any, stream: RouterStream, receiver: Receiver) -> str:
        """Returns why it is over."""
        async with asyncio.timeout(_GREETING_SECONDS):
            first = await call.read()
        if first is grpc.aio.EOF:
            return _ENDED
        greeting = _readable(first)
        if greeting.draining:
            return "the router drains"
        log.info("connected to the router", extra={"address": self.address})
        stream.opened = True
        stream.chunks = SentChunks(greeting.prompt_chunks)
        self.metrics.current.inc()
        receiver.opened(stream)
        receiver.receive(stream, greeting)
        async with Silence(self._patience(greeting.beat_ms)) as listening:
            stream.silence = listening

            def take(message: Part | router_pb2.RouterMessage | None) -> None:
                listening.heard = True
                if isinstance(message, tuple):
                    receiver.receive(stream, message)
                    return
                said = _readable(message)
                if said.draining:  # before the first refusal that the message may hold
                    receiver.unsent(stream.drain())
                receiver.receive(stream, said)

            await call.hand_on(take)
        return _ENDED

    def _patience(self, beat_ms: int) -> float:
        """For how many seconds a router may say nothing that says something so often."""
        return max(self.silence_seconds, _MISSED_HEARTBEATS * beat_ms / 1000) if beat_ms else inf

    def _complain(self, stream: RouterStream, reason: str) -> None:
        """Once for each reason, and not of what was to be expected."""
        if stream.draining and reason == _ENDED:
            return
        if stream.opened or reason != self._complaint:
            extra = {"address": self.address, "reason": reason}
            log.warning("no stream to the router", extra=extra)
        self._complaint = reason


def _read(message: bytes) -> Part | router_pb2.RouterMessage:
    """A part, where there is no more. Raises DecodeError."""
    return frames.read_part(message) or router_pb2.RouterMessage.FromString(message)


def _readable(message: Part | router_pb2.RouterMessage | None) -> router_pb2.RouterMessage:
    """Raises ValueError for None, an unreadable message, and for a part, which is no greeting."""
    if message is None:
        raise ValueError("a message is no tandem.v1.RouterMessage")
    if isinstance(message, tuple):
        raise ValueError("output comes before the router has greeted")
    return message
