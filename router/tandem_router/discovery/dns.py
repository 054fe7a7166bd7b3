"""Names whose every address is a worker, or a router, such as a headless Service: looked up again
and again.

DNS says neither which pod an address belongs to nor that a pod ends: a name that is not resolved
may be a fault of the resolver, so what was known stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence

from tandem.wire import addresses
from tandem.wire.addresses import Resolve
from tandem_router.core.values import Phase
from tandem_router.discovery.base import Listing, Trouble, Watchkeeper, listed

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0


class DnsDiscovery:
    def __init__(
        self,
        *,
        prefill: Sequence[str],
        decode: Sequence[str],
        aggregated: Sequence[str] = (),
        routers: Sequence[str] = (),
        resolve: Resolve = addresses.resolve,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        """All are "host:port", their form checked by the configuration."""
        self.keeper = Watchkeeper()
        self._workers: list[tuple[str, Phase | None]] = [
            *((name, Phase.PREFILL) for name in prefill),
            *((name, Phase.DECODE) for name in decode),
            *((name, None) for name in aggregated),
        ]
        self._routers = list(routers)
        self._known: dict[str, list[str]] = {}
        """The addresses of each name."""
        self._failures: dict[str, str] = {}
        self._resolve = resolve
        self._interval = interval_seconds

    async def listings(self) -> AsyncGenerator[Listing]:
        last: Listing | None = None
        names = [*(name for name, _ in self._workers), *self._routers]
        while True:
            answers = await asyncio.gather(*map(self._look_up, names))
            if all(answers):
                self.keeper.heard()
            listing = self._listing()
            has_workers = any(answers[: len(self._workers)]) or not self._workers
            if listing != last and (has_workers or last):
                last = listing
                yield listing
            await asyncio.sleep(self._interval)

    def _listing(self) -> Listing:
        workers = [
            each
            for name, phase in self._workers
            for address in self._known.get(name, ())
            for each in listed(address, phase)
        ]
        routers = [address for name in self._routers for address in self._known.get(name, ())]
        return Listing(tuple(workers), frozenset(routers))

    async def _look_up(self, name: str) -> bool:
        """Whether the name was resolved."""
        host, port = addresses.split(name)
        try:
            found = await self._resolve(host, port)
        except OSError as error:
            self.keeper.failed(Trouble.LOOKUP)
            self._note(name, str(error.strerror or error))
            return False
        self._failures.pop(name, None)
        self._known[name] = [addresses.join(each, port) for each in found]
        return True

    def _note(self, name: str, reason: str) -> None:
        """Log what is new: a name is looked up for ever and named once."""
        if self._failures.get(name) != reason:
            log.warning(
                "a name is not resolved; the addresses known before stay",
                extra={"address": name, "reason": reason},
            )
        self._failures[name] = reason
