"""What the dispatcher keeps of a request."""

from __future__ import annotations

import asyncio

from msgspec import Struct


class Dispatch(Struct):
    """How far a request's dispatch has come. The dispatcher writes most of it."""

    waiting: list[int] = []
    """The first sequences of the prompts that wait for a stream to a router."""
    patience: asyncio.TimerHandle | None = None
    """Ends the wait of those prompts."""
    turn: int = 0
    """The lowest turn of waiting requests is sent first. 0: the request has never waited."""
    waits_until: float = 0.0
    """By the demultiplexer's clock: when the last wait for a router that takes requests is over."""
    submitted_at: float = 0.0
    """By the same clock: when a prompt was given to a router last."""
    lost_routers: int = 0
    """Routers that were lost while the request waited there."""
    refusals: dict[int, int] = {}
    """Sequences that the router refused last, by the first sequence of their prompt."""
