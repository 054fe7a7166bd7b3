"""The worker's end of one process of the hook pool: what is open there, and what waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final

import msgspec

from tandem.errors import LoadError, StartError
from tandem.hooks.deferred import Ruling
from tandem.hooks.runner.processes.counters import ProcessCounters
from tandem.hooks.runner.processes.sequence import PoolSequence
from tandem.hooks.runner.processes.wire import (
    MAX_MESSAGE_BYTES,
    Batch,
    Reply,
    answers,
    encode,
    starts,
)
from tandem.pool.kept import KeepLimits, KeptProcess
from tandem.pool.process import LostError

PROGRAM: Final = "tandem.hooks.runner.processes.process"


class PoolLink(KeptProcess):
    """One process, from its start to its loss."""

    def __init__(
        self,
        *,
        boot: bytes,
        limits: KeepLimits,
        counters: ProcessCounters,
        work_seconds: float,
        on_reply: Callable[[PoolLink, Reply], int],
        on_lost: Callable[[PoolLink], None],
    ) -> None:
        """`work_seconds`: how long one Work may take. `on_reply` returns how many Works were
        answered, and raises WireError.
        """
        super().__init__(
            "a hook process",
            max_message_bytes=MAX_MESSAGE_BYTES,
            on_message=self._take,
            on_lost=partial(on_lost, self),
        )
        self._boot = boot
        self._limits = limits
        self._work_seconds = work_seconds
        self._on_reply = on_reply
        self.counters = counters
        self.sequences: dict[int, PoolSequence[PoolLink]] = {}
        self.batch = Batch()
        """What `flush` sends."""
        self.rulings: list[Ruling] = []
        """Rulings that came and wait for more of their group."""
        self.resumable = False
        """Every hook of the process is resumable."""

    async def begin(self) -> None:
        """Until the process can judge. Raises LoadError or StartError; then the process is lost."""
        try:
            await self.start(PROGRAM)
            started = starts.decode(await self.ask(self._boot, seconds=self._limits.start))
        except (LostError, msgspec.DecodeError) as error:
            await self.end()
            why = f"{error}{self.status}"
            raise StartError(f"a process of the hook pool did not start: {why}") from error
        if started.error:
            self.lose("the process's hooks cannot be loaded")
            raise LoadError(started.error)
        self.resumable = started.resumable
        self.has_begun()
        self.flush()

    def patience(self) -> float:
        """The Works of a group are answered together."""
        groups = Counter(each.group.number for each in self.sequences.values() if each.waiting)
        return self._work_seconds * max(groups.values(), default=1) + self._limits.margin

    def flush(self) -> None:
        """Send what was put into `batch`, if anything, once there is somebody to send it to."""
        batch = self.batch
        if (batch.request_ids or batch.aborted) and self._transport is not None:
            self.batch = Batch()
            self.tell(encode(batch), len(batch.request_ids) + len(batch.aborted))

    def _take(self, payload: bytes | bytearray) -> None:
        self.heard_at = monotonic()
        answer = answers.decode(payload)
        if isinstance(answer, Reply):
            self.owed -= answer.aborts + self._on_reply(self, answer)
        else:
            self.counters.update(answer)
