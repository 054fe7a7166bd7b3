"""Runs a chain with async hooks in tasks of this process: the Works of one request are judged in
order, those of different requests at once.

Each group (the n outputs of a request) has a lane; a lane has a task while there is something to
do. A lane that is stuck, because a hook ignores its cancellation, is given up: its Works fail
closed, and its task is cancelled and no longer waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Sequence
from time import monotonic
from typing import Final

from tandem.errors import HookError
from tandem.hooks.chain import Chain, SequenceChain
from tandem.hooks.contract import Chunk
from tandem.hooks.deferred import Deliver, Ruling, SequenceInfo, Work
from tandem.hooks.runner.rulings import NextTurn, failed, judged, over, patience
from tandem.usercode.call import name_of, place_of

log = logging.getLogger(__name__)
CANCEL_SECONDS: Final = 1.0
"""For tasks that were cancelled to end; one that ignores it is left behind."""
MAX_WAITING: Final = 1000
"""Works of one request that may wait."""
MARGIN_SECONDS: Final = 1.0
CLOSE_SECONDS: Final = 5.0
"""For hooks to be told that their sequences are over."""
Batch = Sequence[tuple[Work, SequenceChain]]


async def run(chain: SequenceChain, chunk: Chunk | None) -> None:
    """Make the calls that a chain asks for, from `chunk` on. Raises this task's cancellation."""
    while chunk is not None:
        hook = chain.hook
        if hook.loaded.is_async:
            answer = await hook.caller.call_async(hook.function, chunk)
        else:
            answer = hook.caller.call(hook.function, chunk)
        chunk = chain.answered(answer)


class Lane:
    """One group's jobs, in order: Works to judge together, or a sequence to tell its end to."""

    __slots__ = ("began", "group", "jobs", "judging", "members", "task", "waiting")

    def __init__(self, group: Hashable) -> None:
        self.group = group
        self.members: set[SequenceChain] = set()
        """The group's open sequences."""
        self.jobs: deque[Batch | SequenceChain] = deque()
        self.judging: Batch = ()
        self.waiting = 0
        """Works in `jobs`."""
        self.began = 0.0
        """The job in progress, by the monotonic clock."""
        self.task: asyncio.Task[None] | None = None

    def unanswered(self) -> Batch:
        """In order, those of aborted sequences left out."""
        batches = [self.judging, *(job for job in self.jobs if not isinstance(job, SequenceChain))]
        return [pair for batch in batches for pair in batch if not pair[1].aborted]


class AsyncRunner:
    """Implements DeferredHooks. Every group has a lane."""

    def __init__(
        self,
        chain: Chain,
        *,
        max_waiting: int = MAX_WAITING,
        margin_seconds: float = MARGIN_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        """A lane of which more than `max_waiting` Works wait fails closed, and so does one whose
        hooks take `margin_seconds` longer for a Work than their timeouts allow.
        """
        self.chain = chain
        self._max_waiting = max_waiting
        self._patience = patience([hook.entry for hook in chain.hooks]) + margin_seconds
        self._close_seconds = close_seconds
        self._open: dict[int, SequenceChain] = {}
        self._lanes: dict[Hashable, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks, those of given-up lanes too, until they end."""
        self._watch: asyncio.TimerHandle | None = None
        self._next_turn = NextTurn(self._answer)
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
        chain = self._open[info.request_id] = self.chain.sequence(info)
        lane = self._lanes.get(info.group)
        if lane is None:
            lane = self._lanes[info.group] = Lane(info.group)
        lane.members.add(chain)

    def submit(self, work: Sequence[Work]) -> None:
        batches: dict[Hashable, list[tuple[Work, SequenceChain]]] = {}
        for item in work:
            chain = self._open.get(item.request_id)
            if chain is None or chain.over:
                self._next_turn.add(over(item, chain))
            else:
                batches.setdefault(chain.info.group, []).append((item, chain))
        for group, batch in batches.items():
            lane = self._lanes[group]
            lane.jobs.append(batch)
            lane.waiting += len(batch)
            if lane.waiting > self._max_waiting:
                self._give_up(lane, f"more than {self._max_waiting} chunks wait for the hook")
            else:
                self._run_soon(lane)

    def abort(self, request_id: int) -> None:
        """Hooks are told after the Work that is being judged. What waits is not judged."""
        chain = self._open.pop(request_id, None)
        if chain is None:
            return
        chain.aborted = True
        lane = self._lanes.get(chain.info.group)
        if chain.over:
            self._leave(chain)
        elif lane is not None and chain in lane.members:
            lane.jobs.append(chain)
            self._run_soon(lane)

    async def close(self) -> None:
        """Break off what is being judged, and tell all hooks that it is over. Bounded by
        `close_seconds`, CANCEL_SECONDS more, and what the hooks' shutdown takes.
        """
        if self._closed:
            return
        self._closed = True
        for chain in self._open.values():
            chain.aborted = True
        self._open.clear()
        for lane in list(self._lanes.values()):
            lane.jobs = deque(lane.members)
            if lane.judging and lane.task is not None:
                lane.task.cancel()
            else:
                self._run_soon(lane)
        await self._settle(self._close_seconds)
        for task in self._tasks:
            task.cancel()
        await self._settle(CANCEL_SECONDS)
        if self._tasks:
            log.error("hooks go on although they were cancelled", extra={"count": len(self._tasks)})
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        await self.chain.shutdown()

    def _answer(self, rulings: Sequence[Ruling]) -> None:
        """A sequence that is over is forgotten with its Ruling."""
        for ruling in rulings:
            chain = self._open.get(ruling.request_id)
            if chain is not None and chain.over:
                del self._open[ruling.request_id]
                self._leave(chain)
        if not self._closed:
            self._deliver(rulings)

    def _leave(self, chain: SequenceChain) -> None:
        """The sequence is over, and its hooks know."""
        lane = self._lanes.get(chain.info.group)
        if lane is not None:
            lane.members.discard(chain)
            self._drop_if_idle(lane)

    async def _settle(self, seconds: float) -> None:
        """Until no task runs, or the time is over."""
        until = monotonic() + seconds
        while self._tasks and (left := until - monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)

    # --- a lane's task ---------------------------------------------------------------------------

    def _run_soon(self, lane: Lane) -> None:
        if lane.task is not None:
            return
        lane.began = monotonic()
        loop = asyncio.get_running_loop()
        task = lane.task = loop.create_task(self._run(lane))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(lane, ended))
        if self._watch is None:
            self._watch = loop.call_later(self._patience, self._look)

    async def _run(self, lane: Lane) -> None:
        while lane.jobs:
            job = lane.jobs.popleft()
            lane.began = monotonic()
            if isinstance(job, SequenceChain):
                await run(job, job.end())
                lane.members.discard(job)
            else:
                lane.waiting -= len(job)
                await self._judge(lane, job)

    async def _judge(self, lane: Lane, batch: Batch) -> None:
        lane.judging = batch
        rulings: list[tuple[SequenceChain, Ruling]] = []
        for work, chain in batch:
            if chain.over:
                rulings.append((chain, over(work, chain)))
            elif not chain.aborted:
                try:
                    await run(chain, chain.begin(work.piece, work.final))
                except Exception as error:  # noqa: BLE001 - of this sequence's hooks alone
                    chain.broke(error)
                rulings.append((chain, judged(work, chain)))
            if lane.judging is not batch:
                return  # given up meanwhile, and answered
        lane.judging = ()
        if answers := [ruling for chain, ruling in rulings if not chain.aborted]:
            self._answer(answers)

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        lane.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            extra = {"reason": f"{name_of(type(error))} {place_of(error)}"}
            log.error("a request's hooks could not be run", extra=extra)
            self._give_up(lane, "the hook could not be run")
        if lane.judging and not self._closed:  # a hook cancelled the task that it runs in
            self._give_up(lane, "the hook cancelled itself")
        if lane.jobs:  # it was cancelled: what it had to tell is told by another one
            self._run_soon(lane)
        self._drop_if_idle(lane)

    def _drop_if_idle(self, lane: Lane) -> None:
        if lane.task is None and not lane.members and self._lanes.get(lane.group) is lane:
            del self._lanes[lane.group]

    # --- lanes that are stuck --------------------------------------------------------------------

    def _look(self) -> None:
        """Give up what is overdue, and look again when the next lane may be."""
        now = monotonic()
        self._watch = None
        for lane in [lane for lane in self._lanes.values() if lane.task is not None]:
            if self._left(lane, now) <= 0:
                self._give_up(lane, "the hook ignores its timeout")
        left = [self._left(lane, now) for lane in self._lanes.values() if lane.task is not None]
        if left:
            self._watch = asyncio.get_running_loop().call_later(min(left), self._look)

    def _left(self, lane: Lane, now: float) -> float:
        return lane.began + self._patience * max(len(lane.judging), 1) - now

    def _give_up(self, lane: Lane, why: str) -> None:
        """Fail the whole group closed. Its hooks are told when the call in progress has ended."""
        trace_id = next((chain.info.trace_id for chain in lane.members), None)
        extra = {"trace_id": trace_id, "reason": why}
        log.error("a request's hooks were given up", extra=extra)
        error = HookError(f"the output hook failed: {why}")
        if self._lanes.get(lane.group) is lane:
            del self._lanes[lane.group]
        unanswered = lane.unanswered()
        lane.judging, lane.jobs, lane.waiting = (), deque(lane.members), 0
        for chain in lane.members:
            chain.over, chain.error = True, chain.error or error
        for work, _ in unanswered:
            self._next_turn.add(failed(work, error))
        if lane.task is not None:
            lane.task.cancel()
        else:
            self._run_soon(lane)
