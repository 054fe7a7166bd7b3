"""The addresses of the configuration. Nobody tells which of the other routers are there: they are
asked at their ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from tandem.wire import addresses
from tandem_router.core.values import Phase
from tandem_router.discovery.base import Listed, Listing, Watchkeeper, listed

INTERVAL_SECONDS = 2.0
PROBE_SECONDS = 2.0
"""For a connection: one packet of it may be lost."""
Probe = Callable[[str], Awaitable[bool]]


async def is_there(address: str) -> bool:
    """Whether something listens at "host:port". A process that hangs is there too."""
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(*addresses.split(address))
    except (OSError, UnicodeError):  # a timeout, and of what can be no name
        return False
    writer.close()
    return True


class StaticDiscovery:
    def __init__(
        self,
        *,
        prefill: Sequence[str],
        decode: Sequence[str],
        aggregated: Sequence[str] = (),
        peers: Sequence[str] = (),
        probe: Probe = is_there,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        """`peers`: the other routers; each counts as alive until its first probe."""
        self.keeper = Watchkeeper(clock=lambda: 0.0)  # what cannot change is never out of date
        self._workers = (
            *(Listed(address, Phase.PREFILL) for address in prefill),
            *(Listed(address, Phase.DECODE) for address in decode),
            *(each for address in aggregated for each in listed(address, None)),
        )
        self._peers = tuple(peers)
        self._probe = probe
        self._interval = interval_seconds

    async def listings(self) -> AsyncGenerator[Listing]:
        last = Listing(self._workers, frozenset(self._peers))
        yield last
        while self._peers:
            await asyncio.sleep(self._interval)
            found = await asyncio.gather(*(self._probe(each) for each in self._peers))
            there = (each for each, is_there in zip(self._peers, found, strict=True) if is_there)
            listing = Listing(self._workers, frozenset(there))
            if listing != last:
                last = listing
                yield listing
