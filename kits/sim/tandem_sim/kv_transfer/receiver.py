"""Decode's end of the hand-over: it offers pages for a room and learns what became of them.

One link for each prefill engine, dialled when its first room comes and dropped when its stream
breaks; the next room dials again, so a restarted peer is met anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tandem.errors import KvTransferError, TandemError
from tandem.wire.tls import PeerTls
from tandem_sim.kv_transfer.lease import MARGIN_SECONDS, Leases
from tandem_sim.kv_transfer.memory import Memory
from tandem_sim.kv_transfer.receiver_link import Expected, ReceiverLink
from tandem_sim.kv_transfer.tasks import Tasks

_POLL_SECONDS = 0.001  # uvloop's finest timer; only while a peer says that bytes are moving


class Receiver:
    """All rooms of a decode engine, over all its prefill peers."""

    def __init__(
        self,
        memory: Memory,
        *,
        token_bytes: int,
        free: Callable[[Sequence[int]], None],
        on_crash: Callable[[BaseException], None],
        settle_seconds: float = 2.0,
        margin_seconds: float = MARGIN_SECONDS,
        tls: PeerTls | None = None,
    ) -> None:
        """`settle_seconds`: how long an abort waits for prefill's word before it is final."""
        self.memory = memory
        self.hello = memory.describe(token_bytes=token_bytes)
        self.tls = tls
        self.free = free
        self.leases: Leases[int] = Leases()
        self.tasks = Tasks(on_crash)
        self._settle_seconds = settle_seconds
        self._margin_seconds = margin_seconds
        self._links: dict[str, ReceiverLink] = {}
        self._rooms: dict[int, ReceiverLink] = {}
        self._progressing = False

    def expect(self, peer: str, expected: Expected) -> None:
        """Offer pages for a room to the prefill engine at `peer`, "host:port"."""
        link = self._links.get(peer)
        if link is None:
            link = self._links[peer] = ReceiverLink(self, peer)
            self.tasks.start(link.run(), name=f"kv link to {peer}")
        self._rooms[expected.room] = link
        link.offer(expected)

    def abort(self, room: int, reason: TandemError) -> None:
        """Give a room up. Its settle is called with `reason`: when prefill has answered, or when
        `settle_seconds` have passed. Unknown: no effect.
        """
        link = self._rooms.get(room)
        if link is not None and link.abort(room, reason):
            loop = asyncio.get_running_loop()
            loop.call_later(self._settle_seconds, link.stop_waiting, room)

    def forget(self, room: int) -> None:
        self._rooms.pop(room, None)

    def lease(self, expected: Expected) -> None:
        """Let a peer write into the pages from now on."""

        def expire() -> None:
            link = self._rooms.pop(expected.room, None)
            if link is not None:
                link.rooms.pop(expected.room, None)
            self.memory.progress()  # whatever lies in a socket goes into pages that are still idle
            self.free(expected.pages)
            expected.end(KvTransferError("prefill did not answer within the lease"))

        self.leases.grant(expected.room, expected.lease_seconds + self._margin_seconds, expire)

    def start_progress(self) -> None:
        """Move incoming bytes along until no peer writes any more."""
        if not self._progressing:
            self._progressing = True
            self.tasks.start(self._progress(), name="kv progress")

    def drop_link(self, peer: str) -> None:
        del self._links[peer]

    async def close(self) -> None:
        """Hang up on every peer, settle every room and free all pages."""
        await self.tasks.close()
        self.leases.expire_all()

    async def _progress(self) -> None:
        try:
            while any(link.moving for link in self._links.values()):
                self.memory.progress()
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            self._progressing = False

    def __len__(self) -> int:
        """Rooms that wait, and rooms whose pages are still leased."""
        return len(self._rooms.keys() | set(self.leases))
