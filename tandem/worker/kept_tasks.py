"""Tasks that one router says once and several legs run: read once, and kept until it says that no
further leg runs them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from tandem.byte_budget import ByteBudget
from tandem.errors import InternalError, QueueFullError, TandemError
from tandem.message_limits import MAX_KEPT_BYTES
from tandem.v1 import worker_pb2
from tandem.worker.intake import ReadTask, trace_id_of

Read = Callable[[bytes], ReadTask]
"""Raises a TandemError where the task cannot run."""


class KeptTasks:
    """Those of one stream, by the router's numbers."""

    def __init__(self, read: Read, budget: ByteBudget) -> None:
        """`budget`: what is kept takes of it."""
        self._read = read
        self._kept: dict[int, bytes] = {}
        self._bytes = 0
        self._allotment = budget.allotment()
        self._outcomes: dict[int, ReadTask | TandemError] = {}
        self._trace_ids: dict[int, str | None] = {}

    def keep(self, tasks: Iterable[worker_pb2.KeptTask]) -> None:
        """What is more than a router may have kept is not, nor what there is no memory for: its
        legs are refused.
        """
        for each in tasks:
            self.forget((each.number,))
            if self._bytes + len(each.task) <= MAX_KEPT_BYTES:
                with contextlib.suppress(QueueFullError):
                    self._allotment.admit(len(each.task))
                    self._kept[each.number] = each.task
                    self._bytes += len(each.task)

    def forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            size = len(self._kept.pop(number, b""))
            self._bytes -= size
            self._allotment.give_back(size + _size(self._outcomes.pop(number, None)))
            self._trace_ids.pop(number, None)

    def close(self) -> None:
        """The stream is gone, and nothing is kept for it."""
        self._allotment.close()

    def of(self, command: worker_pb2.StartLeg) -> ReadTask:
        """The task of a leg. Raises the TandemError that says why it cannot run."""
        number = command.kept_task
        if not number:
            return self._read(command.task)
        if number not in self._kept:
            raise QueueFullError("this worker does not keep the task of this leg")
        if command.task:
            return self._read(self._kept[number] + command.task)
        if number not in self._outcomes:
            outcome = self._read_once(self._kept[number])
            self._allotment.admit(_size(outcome))
            self._outcomes[number] = outcome
        outcome = self._outcomes[number]
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

    def _read_once(self, task: bytes) -> ReadTask | TandemError:
        try:
            return self._read(task)
        except TandemError as error:
            return error
        except Exception as error:  # noqa: BLE001 - of the request's own data
            failure = InternalError("this task cannot be read")
            failure.__cause__ = error
            return failure


def _size(outcome: ReadTask | TandemError | None) -> int:
    return outcome.size if isinstance(outcome, ReadTask) else 0
