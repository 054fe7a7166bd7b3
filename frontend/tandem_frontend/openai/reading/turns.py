"""How many do something at once, and whose turn is next: one of each key's after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tandem.errors import QueueFullError
from tandem.line import Line


@dataclass(slots=True, eq=False)
class _Waiting:
    tenant: str
    turn: asyncio.Future[None]


class Turns:
    """At most `at_once` are taken. At most `most_waiting` wait for one; then a key that has few
    waiting takes the place of one that has more.
    """

    def __init__(self, at_once: int, *, most_waiting: int, full: str) -> None:
        """`full`: what those are told for whom there is no place."""
        self._free = at_once
        self._line: Line[_Waiting] = Line(most_waiting)
        self._full = full

    async def take(self, tenant: str) -> None:
        """Wait for a turn, which must be given back. Raises QueueFullError."""
        if self._free:
            self._free -= 1
            return
        if not self._line.has_room(tenant):
            raise QueueFullError(self._full)
        waiting = _Waiting(tenant, asyncio.get_running_loop().create_future())
        displaced = self._line.add(waiting)
        if displaced is not None:
            displaced.turn.set_exception(QueueFullError(self._full))
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if waiting in self._line:
                self._line.remove(waiting)
            elif not waiting.turn.cancelled() and waiting.turn.exception() is None:
                self.give_back()  # it came too late
            raise

    def give_back(self) -> None:
        """Let the next have the turn."""
        while len(self._line):
            waiting = self._line.next()
            if not waiting.turn.done():
                waiting.turn.set_result(None)
                return
        self._free += 1
