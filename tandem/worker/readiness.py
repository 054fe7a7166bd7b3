"""Whether a worker takes work, as grpc.health.v1, `/ready` and the metrics say it."""

from __future__ import annotations

import asyncio
import logging

from tandem.wire.grpc import Server

log = logging.getLogger(__name__)


class Readiness:
    """Ready between `open` and `shut`, and where that is asked for, once a router has said that a
    pair uses this worker. What its peers do later does not make it unready: a rollout waits for the
    other phase, and a lost peer takes no healthy worker along.
    """

    def __init__(self, server: Server, *, needs_pair: bool) -> None:
        self._server = server
        self._open = False
        self._paired = not needs_pair
        self._publishing = asyncio.Lock()

    @property
    def ready(self) -> bool:
        return self._open and self._paired

    async def open(self) -> None:
        self._open = True
        await self._publish()

    async def shut(self) -> None:
        self._open = False
        await self._publish()

    async def on_paired(self) -> None:
        """Each router says it on each of its streams."""
        if not self._paired:
            self._paired = True
            log.info("a pair uses this worker")
            await self._publish()

    async def _publish(self) -> None:
        async with self._publishing:  # so that the last word is the last state
            await self._server.set_serving(self.ready)
