"""Tasks that one router says once and several legs run: read once, and kept until it says that no
further leg runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from tandem.byte_budget import ByteBudget
from tandem.errors import InternalError, QueueFullError, TandemError
from tandem.message_limits import MAX_KEPT_BYTES
from tandem.v1 import worker_pb2
from tandem.worker.intake import Intake, ReadTask, trace_id_of
from tandem.worker.task_sizes import SMALL_BYTES

Outcome = ReadTask | TandemError
"""A task, or why it cannot run."""


class KeptTasks:
    """Tasks of one stream by the router's number."""

    def __init__(self, intake: Intake, budget: ByteBudget) -> None:
        """`budget`: kept tasks count in it."""
        self._intake = intake
        self._kept: dict[int, bytes] = {}
        self._bytes = 0
        self._allotment = budget.allotment()
        self._outcomes: dict[int, Outcome] = {}
        self._ahead: dict[int, Outcome] = {}
        """Holds those of legs that are to be started, and have a task of their own."""
        self._trace_ids: dict[int, str | None] = {}

    def keep(self, tasks: Iterable[worker_pb2.KeptTask]) -> None:
        """What is more than a router may have kept is not, nor what there is no memory for: its
        legs are refused.
        """
        for each in tasks:
            number, task = each.number, each.task
            self.forget((number,))
            if self._bytes + len(task) <= MAX_KEPT_BYTES:
                with contextlib.suppress(QueueFullError):
                    self._allotment.admit(len(task))
                    self._kept[number] = task
                    self._bytes += len(task)

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            size = len(self._kept.pop(number, b""))
            self._bytes -= size
            self._allotment.give_back(size + _size(self._outcomes.pop(number, None)))
            self._trace_ids.pop(number, None)

    def close(self) -> None:
        """The stream is gone, and nothing is kept for it."""
        self._allotment.close()

    def size(self, number: int) -> int:
        """What a kept task takes, in bytes; 0: it is not kept."""
        return len(self._kept.get(number, b""))

    async def read_ahead(self, command: worker_pb2.StartLeg) -> None:
        """Read the task of a leg beside the event loop where it is large, so that `of` has it."""
        number, own = command.kept_task, command.task
        size = self.size(number) + len(own)
        if size <= SMALL_BYTES or (number and number not in self._kept):
            return
        if own:
            self._ahead[command.leg] = await self._outcome_beside(self._kept.get(number, b"") + own)
        elif number not in self._outcomes:
            outcome = await self._outcome_beside(self._kept[number])
            self._ahead[command.leg] = self._kept_outcome(number, outcome)

    def of(self, command: worker_pb2.StartLeg) -> ReadTask:
        """The task of a leg. Raises the TandemError that says why it cannot run."""
        number = command.kept_task
        outcome = self._ahead.pop(command.leg, None)
        if outcome is None:
            outcome = self._outcome_of(number, command.task)
        if isinstance(outcome, TandemError):
            raise outcome
        return outcome

    def trace_id(self, command: worker_pb2.StartLeg) -> str | None:
        """For the log of a refusal."""
        number = command.kept_task
        if number not in self._kept:
            return trace_id_of(command.task)
        if number not in self._trace_ids:
            self._trace_ids[number] = trace_id_of(self._kept[number])
        return self._trace_ids[number]

    def _outcome_of(self, number: int, own: bytes) -> Outcome:
        if not number:
            return self._intake.read(own)
        if number not in self._kept:
            return QueueFullError("this worker does not keep the task of this leg")
        if own:
            return self._intake.read(self._kept[number] + own)
        if number in self._outcomes:
            return self._outcomes[number]
        task = self._kept[number]
        return self._kept_outcome(number, _outcome(lambda: self._intake.read(task)))

    def _kept_outcome(self, number: int, outcome: Outcome) -> Outcome:
        """Keep `outcome` for the legs to come; where there is no memory, the leg is refused."""
        try:
            self._allotment.admit(_size(outcome))
        except QueueFullError as error:
            return error
        self._outcomes[number] = outcome
        return outcome

    async def _outcome_beside(self, task: bytes) -> Outcome:
        try:
            parsed = await asyncio.to_thread(self._intake.parse, task)
        except Exception as error:  # noqa: BLE001 - of the request's own data
            return _as_outcome(error)
        return _outcome(lambda: self._intake.check(parsed))


def _outcome(read: Callable[[], ReadTask]) -> Outcome:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - of the request's own data
        return _as_outcome(error)


def _as_outcome(error: Exception) -> TandemError:
    if isinstance(error, TandemError):
        return error
    failure = InternalError("this task cannot be read")
    failure.__cause__ = error
    return failure


def _size(outcome: Outcome | None) -> int:
    return outcome.size if isinstance(outcome, ReadTask) else 0
