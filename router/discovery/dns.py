"""Names whose every address is a worker, such as a headless Service, looked up again and again.

DNS says neither which pod an address belongs to nor that a pod ends: a name that is not resolved
may be a fault of the resolver, so what was known stays.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from router.core.values import Phase
from router.discovery.base import Listed, Trouble, Watchkeeper

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> Sequence[str]:
    """The name's IPv4 and IPv6 addresses. Raises OSError; how long it takes is the system's."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # of what can be no name, as "a..b"
        raise OSError(str(error)) from error
    return sorted({str(address[0]) for *_, address in found})


class DnsDiscovery:
    def __init__(
        self,
        *,
        prefill: Sequence[str],
        decode: Sequence[str],
        resolve: Resolve = resolve,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        """`prefill` and `decode` are "host:port", their form checked by the configuration."""
        self.keeper = Watchkeeper()
        self._names = [
            *(Listed(name, Phase.PREFILL) for name in prefill),
            *(Listed(name, Phase.DECODE) for name in decode),
        ]
        self._known: dict[Listed, list[Listed]] = {}
        self._failures: dict[Listed, str] = {}
        self._resolve = resolve
        self._interval = interval_seconds

    async def listings(self) -> AsyncGenerator[Sequence[Listed]]:
        last: Sequence[Listed] | None = None
        while True:
            answers = await asyncio.gather(*(self._look_up(name) for name in self._names))
            if all(answers):
                self.keeper.heard()
            listing = [worker for name in self._names for worker in self._known.get(name, ())]
            if listing != last and (any(answers) or not self._names):
                last = listing
                yield listing
            await asyncio.sleep(self._interval)

    async def _look_up(self, name: Listed) -> bool:
        """Whether the name was resolved."""
        host, _, port = name.address.rpartition(":")
        try:
            addresses = await self._resolve(host.strip("[]"), int(port))
        except OSError as error:
            self.keeper.failed(Trouble.LOOKUP)
            self._note(name, str(error.strerror or error))
            return False
        self._failures.pop(name, None)
        self._known[name] = [
            Listed(f"[{each}]:{port}" if ":" in each else f"{each}:{port}", name.phase)
            for each in addresses
        ]
        return True

    def _note(self, name: Listed, reason: str) -> None:
        """Log what is new: a name is looked up for ever and named once."""
        if self._failures.get(name) != reason:
            log.warning(
                "a name of workers is not resolved; what was known of it stays",
                extra={"address": name.address, "reason": reason},
            )
        self._failures[name] = reason
