"""Runs the chain in processes of their own: `hooks.workers` of them.

A hook that crashes, hangs in C code or eats all memory then costs the requests of one process, and
not the worker. All chunks of a request go to one process (S0-031); a step is one message to each
process, and one back. When a process is lost, its open requests fail closed, others go on, and a
new one takes its place (S0-032). The worker never waits for one: see docs/design/0008.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import sys
from collections.abc import Hashable, Sequence
from itertools import count
from typing import Final

from msgspec.structs import replace

from tandem.errors import HookError
from tandem.hooks.contract import Phase
from tandem.hooks.deferred import Deliver, Ruling, SequenceInfo, Work
from tandem.hooks.runner.processes.counters import PooledHook, ProcessCounters
from tandem.hooks.runner.processes.link import PoolLink
from tandem.hooks.runner.processes.sequence import PoolGroup, PoolSequence
from tandem.hooks.runner.processes.wire import ChainBoot, Changed, Reply
from tandem.hooks.runner.rulings import NextTurn, failed, over, patience
from tandem.hooks.settings import MAX_TEXT_CHARS, HookSettings
from tandem.logs import Format
from tandem.pool.kept import Keeper, KeepLimits

log = logging.getLogger(__name__)
_NOTHING: Final[dict[int, Changed]] = {}
_NEVER: Final[dict[int, float]] = {}


class HookPool:
    """Judges in processes of their own; implements DeferredHooks."""

    def __init__(
        self,
        settings: HookSettings,
        *,
        phase: Phase,
        model: str,
        log_format: Format = "console",
        log_level: str = "info",
        limits: KeepLimits = KeepLimits(),  # noqa: B008 - it is frozen
    ) -> None:
        """Takes settings that `for_worker` narrowed; `settings.workers` is at least 1."""
        self._settings = settings
        self._phase: Phase = phase
        self._model = model
        self._log_format: Format = log_format
        self._log_level = log_level
        self._limits = limits
        self.hooks = [PooledHook(entry) for entry in settings.chain]
        """For the metrics, as those of a Chain."""
        self._patience = patience(settings.chain)
        self._keeper = Keeper(settings.workers, self._new_link, limits)
        self._sequences: dict[int, PoolSequence[PoolLink]] = {}
        self._groups: dict[Hashable, PoolGroup[PoolLink]] = {}
        self._numbers = count(1)
        self._deliver: Deliver
        self._next_turn = NextTurn(self._answer)
        self._flushing = False
        self._closed = False

    @property
    def open_sequences(self) -> int:
        """Sequences that were opened and are not over, now."""
        return len(self._sequences)

    @property
    def processes_up(self) -> int:
        """Processes that can judge, now."""
        return sum(link.up for link in self._keeper.processes)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that can judge."""
        return [link.pid for link in self._keeper.processes if link.up and link.pid]

    @property
    def restarts(self) -> int:
        """Processes that were replaced, or tried to be."""
        return self._keeper.restarts

    @property
    def outstanding(self) -> int:
        """Works that were sent and not answered, now."""
        return sum(len(sequence.waiting) for sequence in self._sequences.values())

    # --- DeferredHooks ---------------------------------------------------------------------------

    @property
    def resumable(self) -> bool:
        return any(link.resumable for link in self._keeper.processes)

    async def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        try:
            await self._keeper.start()
            log.info("the hook processes are up", extra={"count": self.processes_up})
        except BaseException:  # whoever gives up waiting for it leaves no process behind either
            await self.close()
            raise

    def open(self, info: SequenceInfo) -> None:
        group = self._groups.get(info.group)
        if group is None:
            group = self._groups[info.group] = PoolGroup(info.group, next(self._numbers))
        group.members += 1
        self._sequences[info.request_id] = PoolSequence(info, group)

    def submit(self, work: Sequence[Work]) -> None:
        sequences = self._sequences
        for item in work:
            request_id = item.request_id
            sequence = sequences.get(request_id)
            if sequence is None:
                self._next_turn.add(over(item))
                continue
            if len(item.piece.text) > MAX_TEXT_CHARS:
                self._refuse_long(sequence, item)
                continue
            link = sequence.link or self._place(sequence)
            if link is None:
                self._refuse(sequence, item)
                continue
            sequence.waiting.append(item)
            batch, piece = link.batch, item.piece
            if item.final:
                batch.finals.append(len(batch.request_ids))
            batch.request_ids.append(request_id)
            batch.texts.append(piece.text)
            batch.token_ids.append(piece.token_ids)
        self._flush()

    def abort(self, request_id: int) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return
        link = sequence.link or self._place(sequence)
        self._forget(sequence)
        if link is not None:
            link.owed -= len(sequence.waiting)
            link.batch.aborted.append(request_id)
            self._flush_soon()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._sequences.clear()
        self._groups.clear()
        await self._keeper.close()

    # --- requests and processes ------------------------------------------------------------------

    def _place(self, sequence: PoolSequence[PoolLink]) -> PoolLink | None:
        """The process of the sequence's request, or for a new request the one with the least to do;
        None: there is none, or it was lost.
        """
        if sequence.error is not None:
            return None
        group = sequence.group
        if group.link is None or group.link.lost:
            # One that is starting reads what was sent when it is up; a start is bounded.
            links = self._keeper.usable()
            if not links:
                return None
            group.link = min(links, key=lambda link: len(link.sequences))
        link = sequence.link = group.link
        link.sequences[sequence.info.request_id] = sequence
        link.batch.opened.append(replace(sequence.info, group=group.number))
        return link

    def _refuse(self, sequence: PoolSequence[PoolLink], work: Work) -> None:
        error = sequence.error or HookError("no process that runs the output hooks is up")
        self._forget(sequence)
        self._next_turn.add(failed(work, error))

    def _refuse_long(self, sequence: PoolSequence[PoolLink], work: Work) -> None:
        """No engine makes so many tokens at once."""
        error = HookError(f"a chunk is longer than {MAX_TEXT_CHARS} characters")
        self.abort(work.request_id)
        for each in (*sequence.waiting, work):
            self._next_turn.add(failed(each, error))

    def _forget(self, sequence: PoolSequence[PoolLink]) -> None:
        del self._sequences[sequence.info.request_id]
        if sequence.link is not None:
            del sequence.link.sequences[sequence.info.request_id]
        group = sequence.group
        group.members -= 1
        if not group.members:
            del self._groups[group.key]

    def _flush(self) -> None:
        self._flushing = False
        for link in self._keeper.processes:
            link.flush()

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    # --- what processes say ----------------------------------------------------------------------

    def _on_reply(self, link: PoolLink, reply: Reply) -> int:
        changed = {change.place: change for change in reply.changed} if reply.changed else _NOTHING
        seconds = dict(reply.seconds) if reply.seconds else _NEVER
        rulings = link.rulings
        before = len(rulings)
        try:
            for place, request_id in enumerate(reply.request_ids):
                sequence = self._sequences.get(request_id)
                if sequence is None:
                    continue  # aborted meanwhile
                ruling = sequence.answer(changed.get(place), seconds.get(place, 0.0))
                rulings.append(ruling)
                if ruling.final or ruling.reason is not None or ruling.error is not None:
                    self._forget(sequence)
                    rulings += sequence.answer_rest(reason=ruling.reason, error=ruling.error)
        finally:
            answered = len(rulings) - before
            if rulings and not reply.more:
                link.rulings = []
                self._answer(rulings)
        return answered

    def _answer(self, rulings: Sequence[Ruling]) -> None:
        if not self._closed:
            self._deliver(rulings)

    def _on_lost(self, link: PoolLink) -> None:
        """Fail its open requests closed."""
        link.counters.gone()
        if self._closed:
            return
        if link.sequences:
            log.error(
                "requests failed: their hook process was lost",
                extra={"reason": link.lost, "count": len(link.sequences)},
            )
        error = HookError("the process that ran the output hooks was lost")
        for ruling in link.rulings:  # those that belong together have not all come
            self._next_turn.add(replace(ruling, piece=None, reason=None, error=error))
        for sequence in list(link.sequences.values()):
            sequence.error = error
            sequence.group.link = None
            if sequence.waiting:
                self._forget(sequence)
                for ruling in sequence.answer_rest(error=sequence.error):
                    self._next_turn.add(ruling)
            sequence.link = None
        link.sequences.clear()

    def _new_link(self, place: int) -> PoolLink:
        boot = ChainBoot(
            settings=self._settings,
            phase=self._phase,
            model=self._model,
            import_path=sys.path,
            component=f"{self._phase}_worker-hooks-{place}",
            log_format=self._log_format,
            log_level=self._log_level,
        )
        return PoolLink(
            boot=pickle.dumps(boot),
            limits=self._limits,
            counters=ProcessCounters(self.hooks),
            work_seconds=self._patience,
            on_reply=self._on_reply,
            on_lost=self._on_lost,
        )
