"""Carries what has happened from the engine to its one consumer, in order and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tandem.engine.base import Delta, Step
from tandem.errors import EngineError


class Mailbox:
    """All that came since the consumer last looked is one step."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._error: EngineError | None = None
        self._closed = False
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()
        self._taken.set()

    def put(self, deltas: list[Delta]) -> None:
        if self._closed:
            return
        if self._deltas:
            self._deltas += deltas
        else:
            self._deltas = deltas
        self._filled.set()

    def fail(self, error: EngineError) -> None:
        """The engine is dead: the consumer reads what is left, then this."""
        self._error = error
        self.close()

    def close(self) -> None:
        self._closed = True
        self._filled.set()

    async def drained(self) -> None:
        """The consumer has seen everything. A step of the whole batch waits for it, so that a slow
        consumer slows the engine and nothing piles up.
        """
        if self._deltas:
            self._taken.clear()
            await self._taken.wait()

    async def steps(self) -> AsyncIterator[Step]:
        while True:
            await self._filled.wait()
            self._filled.clear()
            deltas, self._deltas = self._deltas, []
            self._taken.set()
            if deltas:
                yield deltas
            if self._closed and not self._deltas:
                self._filled.set()  # a second consumer ends too
                if self._error is not None:
                    raise self._error
                return
