"""What all runners say of Works, and how long those may take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from tandem.errors import HookError
from tandem.hooks.chain import SequenceChain
from tandem.hooks.deferred import Deliver, Ruling, Work
from tandem.hooks.settings import HookEntry

CALLS_PER_WORK: Final = 3
"""A hook that hangs may be called so often for one Work, each time for its whole timeout: with the
chunk, with the word that the sequence is over, and in `close`.
"""


def patience(chain: Sequence[HookEntry]) -> float:
    """Seconds that one Work may take when every hook of a chain uses up its timeout each time."""
    return CALLS_PER_WORK * sum(entry.timeout_ms for entry in chain) / 1000


def judged(work: Work, chain: SequenceChain) -> Ruling:
    """The chain has judged it just now."""
    return Ruling(
        work.request_id,
        chain.passed,
        work.final,
        chain.reason,
        chain.error,
        chain.seconds,
        work.generated,
    )


def over(work: Work, chain: SequenceChain | None = None) -> Ruling:
    """Work of a sequence that nobody knows, or that is over: it has the sequence's outcome."""
    if chain is None or (chain.error is None and chain.reason is None):
        return failed(work, HookError("the output hooks have ended with this sequence"))
    return Ruling(
        work.request_id, None, work.final, chain.reason, chain.error, generated=work.generated
    )


def failed(work: Work, error: HookError) -> Ruling:
    """The ruling that fails closed, without a judgement."""
    return Ruling(work.request_id, None, work.final, error=error)


class NextTurn:
    """Delivers Rulings that are known within a call of the one who gets them on the event loop's
    next turn, so that nobody is called back from within `submit`. What was added in one turn is
    delivered together.
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
