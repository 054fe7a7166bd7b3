"""Clients that go away."""

from __future__ import annotations

import asyncio
from random import Random

from chaotic.fleet import Fleet
from chaotic.trial import Kind, leaves

_SECONDS = 10.0


async def go_on(fleet: Fleet, rng: Random) -> None:
    """Nothing but what clients do."""
    fleet.struck()
    await asyncio.sleep(_SECONDS)


KINDS: tuple[Kind, ...] = (
    Kind(name="half of the clients go away", strike=go_on, leave=0.5, shows=leaves),
)
