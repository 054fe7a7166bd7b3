"""What the worker keeps of a sequence whose chunks are judged in another process: the Works that
were not answered yet, and the tokens that may still be shown.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

from tandem.errors import HookError
from tandem.hooks.deferred import Ruling, SequenceInfo, Work
from tandem.hooks.piece import Piece
from tandem.hooks.runner.processes.wire import Changed
from tandem.pool.frames import WireError

Link = TypeVar("Link")


@dataclass(slots=True, eq=False)
class PoolGroup(Generic[Link]):
    """The sequences of one request. They share a process from the first chunk on (S0-031)."""

    key: Hashable
    number: int
    members: int = 0
    link: Link | None = None


class PoolSequence(Generic[Link]):
    """One open sequence, on the worker's side of the pool."""

    __slots__ = ("_answered", "_extras", "_ids", "error", "group", "info", "link", "waiting")

    def __init__(self, info: SequenceInfo, group: PoolGroup[Link]) -> None:
        self.info = info
        self.group = group
        self.link: Link | None = None
        """None before its first chunk, and after its process was lost."""
        self.error: HookError | None = None
        """The answer to the next Work, if the process was lost while none waited."""
        self.waiting: deque[Work] = deque()
        """Sent and not answered, oldest first."""
        self._answered = 0
        """Tokens of answered Works."""
        self._ids: list[int] = []
        """The last of them that were not shown: hooks may hold them back."""
        self._extras: list[Any] = []

    def answer(self, change: Changed | None, seconds: float) -> Ruling:
        """To the oldest Work. Raises WireError."""
        if not self.waiting:
            raise WireError("a ruling that nobody asked for")
        work = self.waiting.popleft()
        if change is None:
            piece = self._as_it_is(work.piece)
            return Ruling(work.request_id, piece, work.final, None, None, seconds, work.generated)
        return Ruling(
            work.request_id,
            self._changed(work.piece, change),
            work.final,
            change.reason,
            None if change.error is None else HookError(change.error),
            seconds,
            work.generated,
        )

    def answer_rest(
        self, *, reason: str | None = None, error: HookError | None = None
    ) -> list[Ruling]:
        """Every Work that waits is answered so."""
        rulings = [
            Ruling(work.request_id, None, work.final, reason, error, generated=work.generated)
            for work in self.waiting
        ]
        self.waiting.clear()
        return rulings

    def _as_it_is(self, piece: Piece) -> Piece:
        self._answered += len(piece.token_ids)
        if self._ids:  # tokens are shown in their order: these are gone for good
            self._ids, self._extras = [], []
        return piece

    def _changed(self, piece: Piece, change: Changed) -> Piece | None:
        if change.text is None:
            self._keep(piece)
            return None
        if change.positions is None:
            self._as_it_is(piece).text = change.text
            return piece
        self._keep(piece)
        token_ids, extras = self._take(change.positions)
        return Piece(change.text, token_ids, extras)

    def _keep(self, piece: Piece) -> None:
        count = len(piece.token_ids)
        self._answered += count
        self._ids += piece.token_ids
        self._extras += [None] * count if piece.extras is None else piece.extras

    def _take(self, positions: list[int]) -> tuple[tuple[int, ...], list[Any] | None]:
        """The ids of those tokens; ids before the last one are dropped."""
        if not positions:
            return (), None
        first = self._answered - len(self._ids)
        start, end = positions[0] - first, positions[-1] - first + 1
        if not 0 <= start < end <= len(self._ids):
            raise WireError("tokens that are not there")
        if positions == list(range(positions[0], positions[-1] + 1)):
            ids, extras = self._ids[start:end], self._extras[start:end]
        elif all(before < after for before, after in pairwise(positions)):
            ids = [self._ids[position - first] for position in positions]
            extras = [self._extras[position - first] for position in positions]
        else:
            raise WireError("tokens out of their order")
        del self._ids[:end], self._extras[:end]
        return tuple(ids), None if extras[0] is None else extras
