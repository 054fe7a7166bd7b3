"""Streams to routers that drain: each is kept until what is open by it has ended."""

from __future__ import annotations

import asyncio
import logging

from tandem.upstream.metrics import UpstreamMetrics
from tandem.upstream.router_stream import RouterStream

log = logging.getLogger(__name__)

MAX_OLD_STREAMS = 8
"""At once; the oldest beyond them is closed, whatever is open by it."""


class OldStreams:
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
