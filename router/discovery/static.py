"""The addresses of the configuration."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from router.core.values import Phase
from router.discovery.base import Listed, Watchkeeper


class StaticDiscovery:
    def __init__(self, *, prefill: Sequence[str], decode: Sequence[str]) -> None:
        self.keeper = Watchkeeper(clock=lambda: 0.0)  # what cannot change is never out of date
        self._listing = (
            *(Listed(address, Phase.PREFILL) for address in prefill),
            *(Listed(address, Phase.DECODE) for address in decode),
        )

    async def listings(self) -> AsyncGenerator[Sequence[Listed]]:
        yield self._listing
