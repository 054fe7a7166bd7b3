"""The first process's end of a further one of the same worker, and the words of both.

They are pickled: both ends are the same program, of one user. Join, Live and Scrape are answered,
one after the other.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.metrics_core import Metric

from tandem.admin import SCRAPE_SECONDS
from tandem.engine.base import Sharing
from tandem.errors import StartError
from tandem.pool.boot import Loaded
from tandem.pool.kept import KeptProcess
from tandem.pool.process import LostError

log = logging.getLogger(__name__)
PROGRAM: Final = "tandem.worker.further"
JOIN_SECONDS = 600.0
"""For a process to import its engine's packages and serve; all of the model is there already."""
LOOK_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""The longest that an event loop may stand still before its process counts as hanging."""
_MESSAGE_BYTES: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Join:
    """Join the engine with this ticket. Answered with Loaded, once the process serves or cannot."""

    ticket: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine has died."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Drain, and end. No signal: one more than Ctrl-C, which reaches all of a terminal's processes,
    would end it at once.
    """


@dataclass(frozen=True, slots=True)
class Live:
    """Answered with None, by an event loop that goes round."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """Answered with the metrics, a list of families."""


Word = Join | Lost | Stop | Live | Scrape


class FurtherProcess(KeptProcess):
    """One process, from its start to its end."""

    def __init__(
        self,
        order: Sequence[Any],
        sharing: asyncio.Future[Sharing],
        is_stopping: Callable[[], bool],
    ) -> None:
        """`order`: what the process is to serve, its number first (further.run). `sharing`: of the
        engine, once that has started. `is_stopping`: whether all are to drain.
        """
        self.number: int = order[0]
        super().__init__(
            f"token process {self.number}",
            max_message_bytes=_MESSAGE_BYTES,
        )
        self._ends_by_itself = True
        self._order = order
        self._sharing = sharing
        self._is_stopping = is_stopping
        self._watching: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Until the process serves; its packages are imported while the engine starts."""
        try:
            await self.start(PROGRAM)
            self.send(pickle.dumps((sys.path, pickle.dumps(self._order))))
            if self._is_stopping():
                self.say(Stop())
            sharing = await asyncio.shield(self._sharing)
            loaded: Loaded = await self.answer(Join(sharing.ticket(self.number)), JOIN_SECONDS)
            if loaded.error:
                raise LostError(loaded.error)
        except LostError as error:
            await self.end()
            why = f"{error}{self.status}; the process's own lines say more"
            raise StartError(f"{self.name} did not start: {why}") from error
        self.has_begun()
        self._watching = asyncio.get_running_loop().create_task(self._watch_it())
        log.info("a token process serves", extra={"token_process": self.number})

    def buried(self) -> None:
        self._sharing.result().left(self.number)

    def say(self, what: Word) -> None:
        self.send(pickle.dumps(what))

    async def answer(self, question: Word, seconds: float) -> Any:
        """Raises LostError, also where the answer does not come within the time."""
        return pickle.loads(await self.ask(pickle.dumps(question), seconds=seconds))

    async def scrape(self) -> list[Metric]:
        """The process's metrics; none before it serves, and where it cannot be asked now."""
        if not self.up:
            return []
        try:
            found: list[Metric] = await self.answer(Scrape(), SCRAPE_SECONDS / 2)
        except LostError:
            return []
        return found

    async def _watch_it(self) -> None:
        """Until its event loop stands still."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                await self.answer(Live(), SILENCE_SECONDS)
        except LostError as error:
            self.lose(str(error))
