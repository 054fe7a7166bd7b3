"""Rulings that are known within a call of the one who gets them."""

from __future__ import annotations

import asyncio

from tandem.hooks.deferred import Deliver, Ruling


class Late:
    """Delivers on the event loop's next turn, so that nobody is called back from within `submit`.
    What was added in one turn is delivered together.
    """

    __slots__ = ("_deliver", "_rulings")

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._rulings: list[Ruling] = []

    def add(self, ruling: Ruling) -> None:
        if not self._rulings:
            asyncio.get_running_loop().call_soon(self._send)
        self._rulings.append(ruling)

    def _send(self) -> None:
        rulings, self._rulings = self._rulings, []
        self._deliver(rulings)
