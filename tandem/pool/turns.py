"""How many do something at once, and whose turn is next: one of each key's after the other."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from tandem.errors import QueueFullError


class PlaceInLine:
    """A place in the line for a turn, which is to be waited for."""

    __slots__ = ("given", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.given: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Line:
    """Turns that wait: one of each key's in turn, of a key's the first that came. So whoever asks
    for much that is dear waits for it himself. At most `most` wait: when it is full, a key that has
    few waiting takes the place of one that has more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[str, list[PlaceInLine]] = OrderedDict()
        """The next key first. None is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def __contains__(self, turn: PlaceInLine) -> bool:
        return turn in self._keys.get(turn.tenant, ())

    def has_room(self, tenant: str) -> bool:
        """Whether this key may add one, if another's has to go for it."""
        longest = max(map(len, self._keys.values()), default=0)
        return len(self) < self._most or self._count(tenant) + 1 < longest

    def add(self, turn: PlaceInLine) -> PlaceInLine | None:
        """Add a turn, making room. Returns the turn that had to go: the last of the longest."""
        gone = None
        if len(self) >= self._most:
            gone = max(self._keys.values(), key=len)[-1]
            self.remove(gone)
        self._keys.setdefault(turn.tenant, []).append(turn)
        return gone

    def favour(self, turn: PlaceInLine, tenant: str) -> None:
        """Another key waits for it too: it waits where its turn comes sooner."""
        if turn in self and self._count(tenant) + 1 < self._count(turn.tenant):
            self.remove(turn)
            turn.tenant = tenant
            self.add(turn)

    def next(self) -> PlaceInLine:
        """The one whose turn it is, which waits no longer. Something must be waiting."""
        tenant, turns = self._keys.popitem(last=False)
        turn = turns.pop(0)
        if turns:
            self._keys[tenant] = turns
        return turn

    def remove(self, turn: PlaceInLine) -> None:
        """Take one out that nobody wants any more. It must be waiting."""
        turns = self._keys[turn.tenant]
        turns.remove(turn)
        if not turns:
            del self._keys[turn.tenant]

    def _count(self, tenant: str) -> int:
        return len(self._keys.get(tenant, ()))


class Turns:
    """At most `at_once` are taken. At most `most_waiting` wait for one; then a key that has few
    waiting takes the place of one that has more.
    """

    def __init__(self, at_once: int, *, most_waiting: int, full: str) -> None:
        """`full`: what those are told for whom there is no place."""
        self._free = at_once
        self._line = Line(most_waiting)
        self._full = full

    @property
    def waiting(self) -> int:
        """Turns that were asked for and not given yet."""
        return len(self._line)

    def check_room(self, tenant: str) -> None:
        """Raises QueueFullError where this key cannot wait for a turn."""
        if not self._free and not self._line.has_room(tenant):
            raise QueueFullError(self._full)

    def line_up(self, tenant: str) -> PlaceInLine:
        """Ask for a turn, which `wait` waits for. Raises QueueFullError."""
        self.check_room(tenant)
        turn = PlaceInLine(tenant)
        if self._free:
            self._free -= 1
            turn.given.set_result(None)
        elif (displaced := self._line.add(turn)) is not None:
            displaced.given.set_exception(QueueFullError(self._full))
        return turn

    async def wait(self, turn: PlaceInLine) -> None:
        """Until the turn is given, which must be given back. Cancelled, it leaves the line. Raises
        QueueFullError where another key took its place.
        """
        try:
            await turn.given
        except asyncio.CancelledError:
            self.leave(turn)
            raise

    def leave(self, turn: PlaceInLine) -> None:
        """Nobody wants the turn any more: whoever waits for it is cancelled."""
        if turn in self._line:
            self._line.remove(turn)
            turn.given.cancel()
        elif not turn.given.cancelled() and turn.given.exception() is None:
            self.give_back()  # it came too late

    async def take(self, tenant: str) -> None:
        """Wait for a turn, which must be given back. Raises QueueFullError."""
        await self.wait(self.line_up(tenant))

    def favour(self, turn: PlaceInLine, tenant: str) -> None:
        """Another key waits for it too: the turn comes when either's would."""
        self._line.favour(turn, tenant)

    def is_waiting(self, turn: PlaceInLine) -> bool:
        """Whether the turn was not given yet."""
        return turn in self._line

    def give_back(self) -> None:
        """Let the next have the turn."""
        while len(self._line):
            turn = self._line.next()
            if not turn.given.done():
                turn.given.set_result(None)
                return
        self._free += 1
