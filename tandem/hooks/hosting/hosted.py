"""One open sequence where its chain runs, and the words for how its Works are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.errors import HookError
from tandem.hooks.chain import SequenceChain
from tandem.hooks.deferred import Ruling, SequenceInfo, Work
from tandem.hooks.piece import Piece
from tandem.hooks.settings import HookEntry

CALLS_PER_WORK: Final = 3
"""A hook that hangs may be called so often for one Work, each time for its whole timeout: with the
chunk, with the word that the sequence is over, and in `close`.
"""


def patience(chain: Sequence[HookEntry]) -> float:
    """Seconds that one Work may take when every hook of a chain uses up its timeout each time."""
    return CALLS_PER_WORK * sum(entry.timeout_ms for entry in chain) / 1000


def over(work: Work) -> Ruling:
    """The answer to Work of a sequence that nobody knows, or knows no more."""
    return failed(work, HookError("the output hooks have ended with this sequence"))


def failed(work: Work, error: HookError) -> Ruling:
    """Closed, without a judgement."""
    return Ruling(work.request_id, None, work.final, error=error)


class Hosted:
    """A sequence, its chain, and how it ended."""

    __slots__ = ("aborted", "chain", "error", "info", "over")

    def __init__(self, info: SequenceInfo, chain: SequenceChain) -> None:
        self.info = info
        self.chain = chain
        self.over = False
        """Its hooks know, or will be told, that it is over: nothing more is judged."""
        self.aborted = False
        """Nobody waits for its Rulings."""
        self.error: HookError | None = None

    def judge(self, work: Work) -> Ruling:
        """Only where no hook of the chain is async."""
        if self.over:
            return self.again(work)
        try:
            piece = self.chain.judge(work.piece, work.final)
        except HookError as error:
            return self.fail(work, error)
        return self._rule(work, piece)

    async def judge_async(self, work: Work) -> Ruling:
        """For every chain."""
        if self.over:
            return self.again(work)
        try:
            piece = await self.chain.judge_async(work.piece, work.final)
        except HookError as error:
            return self.fail(work, error)
        return self._rule(work, piece)

    def again(self, work: Work) -> Ruling:
        """Work that came after the end has the outcome of the sequence."""
        if self.error is None and self.chain.reason is None:
            return over(work)
        return Ruling(work.request_id, None, work.final, reason=self.chain.reason, error=self.error)

    def fail(self, work: Work, error: HookError) -> Ruling:
        self.over, self.error = True, error
        ruling = failed(work, error)
        ruling.seconds = self.chain.seconds
        return ruling

    def _rule(self, work: Work, piece: Piece | None) -> Ruling:
        reason = self.chain.reason
        if reason is None and not work.final:
            return Ruling(work.request_id, piece, False)
        self.over = True
        return Ruling(work.request_id, piece, work.final, reason, seconds=self.chain.seconds)
