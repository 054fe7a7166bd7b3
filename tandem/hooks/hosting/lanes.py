"""Async hooks: the Works of one request are judged in order, those of different requests at once.

Each group (the n outputs of a request) has a lane; a lane has a task while there is something to
do. A lane that is stuck, because a hook ignores its cancellation, is given up: its Works fail
closed, and its task is cancelled and no longer waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic
from typing import Final

from tandem.errors import HookError
from tandem.hooks.deferred import Ruling, Work
from tandem.hooks.hosting.hosted import Hosted, failed

log = logging.getLogger(__name__)
CANCEL_SECONDS: Final = 1.0
"""For tasks that were cancelled to end; one that ignores it is left behind."""
Batch = Sequence[tuple[Work, Hosted]]


class Lane:
    """One group's jobs, in order: Works to judge together, or a sequence to tell its end to."""

    __slots__ = ("began", "group", "jobs", "judging", "members", "task", "waiting")

    def __init__(self, group: Hashable) -> None:
        self.group = group
        self.members: set[Hosted] = set()
        """Its open sequences."""
        self.jobs: deque[Batch | Hosted] = deque()
        self.judging: Batch = ()
        self.waiting = 0
        """Works in `jobs`."""
        self.began = 0.0
        """The job in progress, by the monotonic clock."""
        self.task: asyncio.Task[None] | None = None

    def unanswered(self) -> Batch:
        """In order, those of aborted sequences left out."""
        batches = [self.judging, *(job for job in self.jobs if not isinstance(job, Hosted))]
        return [pair for batch in batches for pair in batch if not pair[1].aborted]


class Lanes:
    """All lanes of a host."""

    def __init__(
        self,
        *,
        answer: Callable[[Sequence[Ruling]], None],
        answer_soon: Callable[[Ruling], None],
        patience_seconds: float,
        max_waiting: int,
    ) -> None:
        """`answer` gets the Rulings of a job, `answer_soon` those of a lane that was given up.
        `patience_seconds` is the longest that one Work may take; a lane of which more than
        `max_waiting` Works wait fails closed.
        """
        self._answer = answer
        self._answer_soon = answer_soon
        self._patience = patience_seconds
        self._max_waiting = max_waiting
        self._lanes: dict[Hashable, Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Those of given-up lanes too, until they end."""
        self._watch: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._lanes)

    def tasks(self) -> int:
        """How many run."""
        return len(self._tasks)

    def open(self, hosted: Hosted) -> None:
        group = hosted.info.group
        lane = self._lanes.get(group)
        if lane is None:
            lane = self._lanes[group] = Lane(group)
        lane.members.add(hosted)

    def submit(self, pairs: Iterable[tuple[Work, Hosted]]) -> None:
        """Of open sequences. What belongs to one group is judged and answered together."""
        batches: dict[Hashable, list[tuple[Work, Hosted]]] = {}
        for pair in pairs:
            batches.setdefault(pair[1].info.group, []).append(pair)
        for group, batch in batches.items():
            lane = self._lanes[group]
            lane.jobs.append(batch)
            lane.waiting += len(batch)
            if lane.waiting > self._max_waiting:
                self._give_up(lane, f"more than {self._max_waiting} chunks wait for it")
            else:
                self._run_soon(lane)

    def abort(self, hosted: Hosted) -> None:
        """Tell the hooks, after the Work that is being judged. What waits is not judged."""
        lane = self._lanes.get(hosted.info.group)
        if lane is not None and hosted in lane.members:
            lane.jobs.append(hosted)
            self._run_soon(lane)

    def leave(self, hosted: Hosted) -> None:
        """The sequence is over, and its hooks know."""
        lane = self._lanes.get(hosted.info.group)
        if lane is not None:
            lane.members.discard(hosted)
            self._drop_if_idle(lane)

    async def close(self, seconds: float) -> None:
        """Break off what is being judged, and tell all hooks that it is over. Bounded by `seconds`,
        and CANCEL_SECONDS more.
        """
        for lane in list(self._lanes.values()):
            lane.jobs = deque(lane.members)
            if lane.judging and lane.task is not None:
                lane.task.cancel()
            else:
                self._run_soon(lane)
        await self._settle(seconds)
        for task in self._tasks:
            task.cancel()
        await self._settle(CANCEL_SECONDS)
        if self._tasks:
            log.error("hooks ignore that they are cancelled", extra={"count": len(self._tasks)})
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

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
            if isinstance(job, Hosted):
                await job.chain.abort_async()
                lane.members.discard(job)
            else:
                lane.waiting -= len(job)
                await self._judge(lane, job)

    async def _judge(self, lane: Lane, batch: Batch) -> None:
        lane.judging = batch
        rulings: list[tuple[Hosted, Ruling]] = []
        for work, hosted in batch:
            if not hosted.aborted:
                rulings.append((hosted, await hosted.judge_async(work)))
            if lane.judging is not batch:
                return  # given up meanwhile, and answered
        lane.judging = ()
        if answers := [ruling for hosted, ruling in rulings if not hosted.aborted]:
            self._answer(answers)

    def _ended(self, lane: Lane, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        lane.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request's hooks could not be run", exc_info=error)
            self._give_up(lane, "it could not be run")
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
                self._give_up(lane, "it ignores its timeout")
        left = [self._left(lane, now) for lane in self._lanes.values() if lane.task is not None]
        if left:
            self._watch = asyncio.get_running_loop().call_later(min(left), self._look)

    def _left(self, lane: Lane, now: float) -> float:
        return lane.began + self._patience * max(len(lane.judging), 1) - now

    def _give_up(self, lane: Lane, why: str) -> None:
        """Fail the whole group closed. Its hooks are told when the call in progress has ended."""
        trace_id = next((member.info.trace_id for member in lane.members), None)
        extra = {"trace_id": trace_id, "reason": why}
        log.error("a request's hooks were given up", extra=extra)
        error = HookError(f"the output hook failed: {why}")
        if self._lanes.get(lane.group) is lane:
            del self._lanes[lane.group]
        unanswered = lane.unanswered()
        lane.judging, lane.jobs, lane.waiting = (), deque(lane.members), 0
        for hosted in lane.members:
            hosted.over, hosted.error = True, hosted.error or error
        for work, _ in unanswered:
            self._answer_soon(failed(work, error))
        if lane.task is not None:
            lane.task.cancel()
        else:
            self._run_soon(lane)
