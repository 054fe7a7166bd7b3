"""Runs a chain without async hooks in this process: Works are answered within `submit`."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Final

from tandem.hooks.chain import Chain, SequenceChain
from tandem.hooks.contract import Chunk
from tandem.hooks.deferred import Deliver, Ruling, SequenceInfo, Work
from tandem.hooks.runner.rulings import judged, over

SLOW_SECONDS: Final = 0.05
"""After so long a submit delivers what it has, so that fast requests do not wait for slow ones, and
whoever watches sees that it goes on.
"""


def run(chain: SequenceChain, chunk: Chunk | None) -> None:
    """Make the calls that a chain asks for, from `chunk` on."""
    while chunk is not None:
        hook = chain.hook
        chunk = chain.answered(hook.caller.call(hook.function, chunk))


class InlineRunner:
    """Judges in the worker itself, at once; implements DeferredHooks."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._open: dict[int, SequenceChain] = {}
        self._deliver: Deliver
        self._closed = False

    @property
    def open_sequences(self) -> int:
        """Sequences that were opened and are not over, now."""
        return len(self._open)

    @property
    def resumable(self) -> bool:
        return self.chain.resumable

    async def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        await self.chain.startup()

    def open(self, info: SequenceInfo) -> None:
        self._open[info.request_id] = self.chain.sequence(info)

    def submit(self, work: Sequence[Work]) -> None:
        find = self._open.get
        chains = [find(item.request_id) for item in work]
        rulings: list[Ruling] = []
        due = perf_counter() + SLOW_SECONDS
        for place, (item, chain) in enumerate(zip(work, chains, strict=True)):
            ended = chain is None or chain.over  # earlier, or with a Work just before this one
            if chain is None or ended:
                rulings.append(over(item, chain))
                continue
            try:
                run(chain, chain.begin(item.piece, item.final))
            except Exception as error:  # noqa: BLE001 - of this sequence's hooks: no other pays
                chain.broke(error)
            rulings.append(judged(item, chain))
            if chain.over:
                del self._open[item.request_id]
            if perf_counter() > due and _may_part(chains, place + 1):
                self._deliver(rulings)
                rulings, due = [], perf_counter() + SLOW_SECONDS
        if rulings:
            self._deliver(rulings)

    def abort(self, request_id: int) -> None:
        chain = self._open.pop(request_id, None)
        if chain is not None:
            run(chain, chain.end())

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for request_id in list(self._open):
            self.abort(request_id)
        await self.chain.shutdown()


def _may_part(chains: Sequence[SequenceChain | None], place: int) -> bool:
    """Whether no group has Works on both sides of `place`."""
    before = {chain.info.group for chain in chains[:place] if chain is not None}
    after = {chain.info.group for chain in chains[place:] if chain is not None}
    return before.isdisjoint(after)
