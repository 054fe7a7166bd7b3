"""How the routers are written that requests may go to, and what names among them stand for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tandem.errors import ConfigError
from tandem.wire import addresses

log = logging.getLogger(__name__)

DNS = "dns://"
"""Before host:port: every address of the host is a router."""
MAX_ROUTERS = 8
"""Where nothing else is set."""


def check(routers: Sequence[str]) -> None:
    """Raises ConfigError for an entry that is no address."""
    if not routers:
        raise ConfigError("the setting router names no router")
    if bad := [each for each in routers if not addresses.is_address(each.removeprefix(DNS))]:
        raise ConfigError(f"routers are written host:port or dns://host:port; not so: {bad[0]!r}")


class Names:
    """Addresses of names. A name that fails to resolve keeps the addresses known before."""

    def __init__(self, names: Sequence[str], resolve: addresses.Resolve) -> None:
        self._resolve = resolve
        self._known: dict[str, list[str]] = {name: [] for name in names}
        self._failures: dict[str, str] = {}

    def addresses(self) -> dict[str, str]:
        """Each address, with a name that stands for it."""
        return {address: name for name, known in self._known.items() for address in known}

    async def look_up(self) -> None:
        await asyncio.gather(*map(self._look_up, self._known))

    async def _look_up(self, name: str) -> None:
        host, port = addresses.split(name)
        try:
            found = await self._resolve(host, port)
        except OSError as error:
            reason = str(error.strerror or error)
            if self._failures.get(name) != reason:  # it is looked up for ever, and named once
                extra = {"address": name, "reason": reason}
                log.warning("a name is not resolved; the addresses known before stay", extra=extra)
            self._failures[name] = reason
            return
        self._failures.pop(name, None)
        self._known[name] = [addresses.join(each, port) for each in found]
