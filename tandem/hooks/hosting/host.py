"""Runs a chain in this process, behind the seam of tandem.hooks.deferred.

A chain without async hooks is judged in `submit` and answered at once: that is how the processes of
the pool do it. A chain with an async hook has a lane for each request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Final

from tandem.hooks.chain import Chain
from tandem.hooks.deferred import Deliver, Ruling, SequenceInfo, Work
from tandem.hooks.hosting.hosted import Hosted, over, patience
from tandem.hooks.hosting.lanes import Lanes
from tandem.hooks.hosting.late import Late
from tandem.usercode.lifecycle import SHUTDOWN_SECONDS

log = logging.getLogger(__name__)
MAX_WAITING: Final = 1000
"""Works of one request that wait for an async hook."""
MARGIN_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 5.0
"""For async hooks to be told that their sequences are over."""
SLOW_SECONDS: Final = 0.05
"""After so long a submit delivers what it has, so that fast requests do not wait for slow ones, and
whoever watches sees that it goes on.
"""


class ChainHost:
    """A chain that this process built. Implements DeferredHooks."""

    def __init__(
        self,
        chain: Chain,
        *,
        max_waiting: int = MAX_WAITING,
        margin_seconds: float = MARGIN_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self.chain = chain
        self._close_seconds = close_seconds
        self._open: dict[int, Hosted] = {}
        self._late = Late(self._answer)
        self._deliver: Deliver
        self._closed = False
        self._lanes: Lanes | None = None
        if chain.is_async:
            self._lanes = Lanes(
                answer=self._answer,
                answer_soon=self._late.add,
                patience_seconds=patience([hook.entry for hook in chain.hooks]) + margin_seconds,
                max_waiting=max_waiting,
            )

    @property
    def open_sequences(self) -> int:
        """Those that were opened and are not over, now."""
        return len(self._open)

    async def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        await self.chain.startup()

    def open(self, info: SequenceInfo) -> None:
        hosted = self._open[info.request_id] = Hosted(info, self.chain.sequence(info))
        if self._lanes is not None:
            self._lanes.open(hosted)

    def submit(self, work: Sequence[Work]) -> None:
        pairs = [(item, self._open.get(item.request_id)) for item in work]
        if self._lanes is None:
            self._judge(pairs)
        else:
            self._lanes.submit(self._judgeable(pairs))

    def abort(self, request_id: int) -> None:
        hosted = self._open.pop(request_id, None)
        if hosted is None:
            return
        hosted.aborted = True
        if self._lanes is None:
            hosted.chain.abort()
        elif hosted.over:
            self._lanes.leave(hosted)
        else:
            self._lanes.abort(hosted)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for hosted in self._open.values():
            hosted.aborted = True
            if self._lanes is None:
                hosted.chain.abort()
        self._open.clear()
        if self._lanes is not None:
            await self._lanes.close(self._close_seconds)
        await self._shut_down()

    # --- inside ----------------------------------------------------------------------------------

    def _judge(self, pairs: Sequence[tuple[Work, Hosted | None]]) -> None:
        rulings: list[Ruling] = []
        began = perf_counter()
        for place, (work, hosted) in enumerate(pairs):
            if hosted is None:
                rulings.append(over(work))
                continue
            rulings.append(hosted.judge(work))
            if hosted.over:
                self._open.pop(work.request_id, None)
            if perf_counter() - began > SLOW_SECONDS and _may_part(pairs, place + 1):
                self._deliver(rulings)
                rulings, began = [], perf_counter()
        if rulings:
            self._deliver(rulings)

    def _judgeable(
        self, pairs: Iterable[tuple[Work, Hosted | None]]
    ) -> Iterable[tuple[Work, Hosted]]:
        """Those of open sequences; the others are answered."""
        for work, hosted in pairs:
            if hosted is None:
                self._late.add(over(work))
            elif hosted.over:
                self._late.add(hosted.again(work))
            else:
                yield work, hosted

    def _answer(self, rulings: Sequence[Ruling]) -> None:
        """A sequence that is over is forgotten with its Ruling."""
        for ruling in rulings:
            hosted = self._open.get(ruling.request_id)
            if hosted is not None and hosted.over:
                del self._open[ruling.request_id]
                if self._lanes is not None:
                    self._lanes.leave(hosted)
        if not self._closed:
            self._deliver(rulings)

    async def _shut_down(self) -> None:
        seconds = SHUTDOWN_SECONDS * len(self.chain.hooks) + CLOSE_SECONDS
        task = asyncio.get_running_loop().create_task(self.chain.shutdown())
        _, pending = await asyncio.wait({task}, timeout=seconds)
        if pending:  # it ignores its own timeout: left behind
            task.cancel()
            log.error("a hook's shutdown does not end", extra={"seconds": seconds})
        else:
            task.result()


def _may_part(pairs: Sequence[tuple[Work, Hosted | None]], place: int) -> bool:
    """Whether no group has Works on both sides of `place`."""
    before = {hosted.info.group for _, hosted in pairs[:place] if hosted is not None}
    after = {hosted.info.group for _, hosted in pairs[place:] if hosted is not None}
    return before.isdisjoint(after)
