"""What both executors do alike: all that does not wait."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from math import inf

from tandem_executor import submissions
from tandem_executor.config import ExecutorConfig
from tandem_executor.core import ExecutorCore
from tandem_executor.requests import Request
from tandem_executor.responses import Response
from tandem_executor.statistics import IterationStats, RequestStatsPerIteration
from tandem_executor.waiters import Waiter


def seconds_of(timeout: timedelta | float | None) -> float:
    """A timeout as a program gives it, in seconds; infinite for None."""
    if timeout is None:
        return inf
    return timeout.total_seconds() if isinstance(timeout, timedelta) else timeout


def awaited(
    id: int | Sequence[int] | timedelta | None,
    timeout: timedelta | float | None,
    ids: Sequence[int] | None,
) -> tuple[int | Sequence[int] | None, float]:
    """Whose responses a program asks for, None: anybody's; and for how many seconds it waits. A
    timedelta may stand in the first place, and ids may be given by either name.
    """
    if isinstance(id, timedelta):
        id, timeout = None, id
    if ids is not None:
        if id is not None:
            raise TypeError("give id or ids, not both")
        id = ids
    return id, timeout if isinstance(timeout, float) else seconds_of(timeout)


class Calls:
    """The core under its lock, as a program's calls use it. After a fork the child has no thread
    that serves them, so there they raise as after a shutdown.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        core: ExecutorCore,
        lock: AbstractContextManager[object],
        nudge: Callable[[], object],
        *,
        refused: Callable[[], Mapping[str, str]],
        scores: bool = False,
    ) -> None:
        """`nudge` tells the backend that there may be something to do. `refused`: arguments of
        requests that this executor refuses now, and why. `scores`: as submissions.asked has it.
        """
        self._config = config
        self._core = core
        self._lock = lock
        self._nudge = nudge
        self._refused = refused
        self._scores = scores
        self.check_open = core.check_open
        _all.add(self)

    @property
    def closed(self) -> bool:
        return self._core.closed

    def enqueue(self, requests: Sequence[Request]) -> list[int]:
        """Returns ids, in order. Raises ShutDownError and FullError."""
        refused = self._refused()
        asked = [
            submissions.asked(request, self._config, refused=refused, scores=self._scores)
            for request in requests
        ]
        with self._lock:
            request_ids = self._core.enqueue(asked, time.monotonic())
        self._nudge()
        return request_ids

    def read(self, request_id: int | None, waiter: Waiter) -> list[Response] | None:
        """What is ready. Where nothing is, the waiter is woken once there may be. None: there is
        nothing to wait for, after shutdown.
        """
        core = self._core
        with self._lock:
            if core.closed:
                return None
            responses = core.read(request_id)
            if not responses:
                core.wait(waiter)
                return responses
            may_start = core.queued > 0
        if may_start:
            self._nudge()  # what they held may let others start
        return responses

    def forget(self, waiter: Waiter) -> None:
        """The waiter is to be woken no longer."""
        with self._lock:
            self._core.forget(waiter)

    def ready(self, request_id: int | None) -> int:
        """How many responses there are to read. Raises ShutDownError."""
        with self._lock:
            self._core.check_open()
            return self._core.ready(request_id)

    def cancel(self, request_id: int) -> None:
        """End a request, unless it has ended. Raises ShutDownError."""
        with self._lock:
            self._core.check_open()
            self._core.cancel(request_id)
        self._nudge()

    def iteration_stats(self) -> list[IterationStats]:
        """The iterations since the last call, the oldest first. Raises ShutDownError."""
        with self._lock:
            self._core.check_open()
            records = self._core.recorder.take_iterations()
        offset = time.time() - time.monotonic()
        return [record.stats(offset) for record in records]

    def request_stats(self) -> list[RequestStatsPerIteration]:
        """The requests of each iteration since the last call, the oldest first. Raises
        ShutDownError.
        """
        with self._lock:
            self._core.check_open()
            return self._core.recorder.take_requests()

    def leave(self) -> None:
        """Give the executor up in a process that is a fork of the program's."""
        self._lock = nullcontext()  # a thread of the other process may have held it
        self._core.leave()

    def shut_down(self) -> bool:
        """Returns whether the executor was open until now."""
        with self._lock:
            was_open = not self._core.closed
            self._core.shut_down()
        return was_open


def _leave_all() -> None:
    for calls in list(_all):
        calls.leave()


_all: weakref.WeakSet[Calls] = weakref.WeakSet()
os.register_at_fork(after_in_child=_leave_all)
