"""Carries what has happened from the engine to its one consumer, in order and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence

from tandem.engine.base import Delta, Engine, Step
from tandem.errors import EngineError


class Mailbox:
    """All that came since the consumer was last given something is one step."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._error: EngineError | None = None
        self._closed = False
        self._take: Callable[[Step], object] | None = None
        self._over: asyncio.Future[None] | None = None
        """What comes of handing on; done once nobody does."""
        self._planned = False
        self._emptied: asyncio.Event | None = None
        """Somebody waits until all was given."""

    def put(self, deltas: Sequence[Delta]) -> None:
        """Hand `deltas` on in the next turn of the loop, with all that come until then."""
        if not self._closed:
            self._deltas += deltas
            self._plan()

    def fail(self, error: EngineError) -> None:
        """The engine is dead: the consumer is given what is left, then this."""
        self._error = error
        self.close()

    def close(self) -> None:
        self._closed = True
        self._plan()

    async def drained(self) -> None:
        """The consumer has been given everything. A step of the whole batch waits for it, so that
        nothing piles up.
        """
        if self._deltas:
            self._emptied = self._emptied or asyncio.Event()
            await self._emptied.wait()

    async def hand_on(self, take: Callable[[Step], object]) -> None:
        """Give each step to `take`, as an Engine does."""
        self._take = take
        self._over = asyncio.get_running_loop().create_future()
        self._plan()
        await self._over

    def give(self, deltas: Sequence[Delta] = ()) -> None:
        """Hand on at once what is there, and these behind it."""
        if not self._closed:
            self._deltas += deltas
        take, over = self._take, self._over
        if take is None or over is None or over.done():
            return
        try:
            if self._deltas:
                step, self._deltas = self._deltas, []
                take(step)
            if self._emptied is not None:
                self._emptied.set()
                self._emptied = None
        except Exception as error:  # noqa: BLE001 - for whoever hands on
            self._end(error)
        else:
            if self._closed and not self._deltas:
                self._end(self._error)

    def _plan(self) -> None:
        if self._take is not None and not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._give_planned)

    def _give_planned(self) -> None:
        self._planned = False
        self.give()

    def _end(self, error: Exception | None) -> None:
        """Unless it is over: what is taken may cancel whoever hands on."""
        over = self._over
        if over is None or over.done():
            return
        if error is not None:
            over.set_exception(error)
        else:
            over.set_result(None)


async def steps(engine: Engine) -> AsyncGenerator[Step, None]:
    """All of them until the engine closes. To be closed before anybody else takes steps. Raises
    EngineError when the engine dies.
    """
    came: asyncio.Queue[Step | None] = asyncio.Queue()
    handing_on = asyncio.get_running_loop().create_task(engine.hand_on(came.put_nowait))
    handing_on.add_done_callback(lambda _: came.put_nowait(None))
    try:
        while (step := await came.get()) is not None:
            yield step
        handing_on.result()
    finally:
        handing_on.cancel()
