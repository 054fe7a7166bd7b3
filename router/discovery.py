"""Which workers there are. Today a fixed list; the seam is where a watch of Kubernetes belongs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from router.core.values import Phase


@dataclass(slots=True, frozen=True)
class Listed:
    address: str
    phase: Phase


class Discovery(Protocol):
    def listings(self) -> AsyncIterator[Sequence[Listed]]:
        """The whole list, and again whenever it changes; ends when it can change no more."""
        ...


class StaticDiscovery:
    """The addresses of the configuration."""

    def __init__(self, *, prefill: Sequence[str], decode: Sequence[str]) -> None:
        self._listing = (
            *(Listed(address, Phase.PREFILL) for address in prefill),
            *(Listed(address, Phase.DECODE) for address in decode),
        )

    async def listings(self) -> AsyncIterator[Sequence[Listed]]:
        yield self._listing
