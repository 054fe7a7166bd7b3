"""What both executors do alike: all that does not wait."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from math import inf
from typing import NoReturn

from tandem.errors import TandemError
from tandem_executor import submissions
from tandem_executor.config import ExecutorConfig, checked_copy
from tandem_executor.core import ExecutorCore
from tandem_executor.left_out import METHODS, refuse
from tandem_executor.live import LiveCode
from tandem_executor.remote import RemoteBackend
from tandem_executor.requests import Request
from tandem_executor.responses import Response
from tandem_executor.serving import serving
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


class ExecutorCalls:
    """What Executor and AsyncExecutor have in common: the core under its lock, and the calls that
    do not wait. After a fork the child has no thread that serves the calls, so there they raise as
    after a shutdown.
    """

    _nudge: Callable[[], object]
    """Tells the backend that there may be something to do."""

    def __init__(
        self, where: str | bytes | os.PathLike[str], executor_config: ExecutorConfig | None = None
    ) -> None:
        """Raises ConfigError where `where` is neither a router nor a model's folder, or the
        configuration cannot be used.
        """
        config = checked_copy(executor_config)
        live = LiveCode(config.logits_post_processor_config)
        self._config = config
        self._lock: AbstractContextManager[object] = threading.Lock()
        self._core = ExecutorCore(
            max_queue_size=config.max_queue_size,
            max_open_sequences=config.max_open_sequences,
            max_unread_tokens=config.max_unread_tokens,
            max_logits_rows=config.max_logits_rows,
            iter_stats_max_iterations=config.iter_stats_max_iterations,
            request_stats_max_iterations=config.request_stats_max_iterations,
        )
        self._serving = serving(where, config, live, self._engines_died)
        self._backend = RemoteBackend(config, self._core, self._lock, live)
        _all.add(self)

    def enqueue_request(self, request: Request) -> int:
        """Returns the request's id, without waiting. What is wrong with the request comes as its
        response. Raises FullError where `max_queue_size` requests wait, and ShutDownError.
        """
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: Sequence[Request]) -> list[int]:
        """Returns their ids, in order: of all of them, or of none where it raises FullError."""
        refused, scores = self._serving.refused, self._serving.own
        asked = [
            submissions.asked(request, self._config, refused=refused, scores=scores)
            for request in requests
        ]
        with self._lock:
            request_ids = self._core.enqueue(asked, time.monotonic())
        self._nudge()
        return request_ids

    def get_num_responses_ready(self, id: int | None = None) -> int:
        """How many responses `await_responses` would return now, without an id of all requests."""
        with self._lock:
            self._core.check_open()
            return self._core.ready(id)

    def cancel_request(self, id: int) -> None:
        """End a request: it gets a final response with CANCELLED. One that has ended is not
        touched.
        """
        with self._lock:
            self._core.check_open()
            self._core.cancel(id)
        self._nudge()

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """What the executor was at in each iteration since the last call, the oldest first, as far
        as `iter_stats_max_iterations` of them are kept.
        """
        with self._lock:
            self._core.check_open()
            records = self._core.recorder.take_iterations()
        offset = time.time() - time.monotonic()
        return [record.stats(offset) for record in records]

    def get_latest_request_stats(self) -> list[RequestStatsPerIteration]:
        """The requests of each iteration since the last call, the oldest first, as far as
        `request_stats_max_iterations` of them are kept.
        """
        with self._lock:
            self._core.check_open()
            return self._core.recorder.take_requests()

    def can_enqueue_requests(self) -> bool:
        """Whether it has not been shut down."""
        return not self._core.closed

    def leave(self) -> None:
        """Give the executor up in a process that is a fork of the program's."""
        self._lock = nullcontext()  # a thread of the other process may have held it
        self._core.leave()

    def __getattr__(self, name: str) -> NoReturn:
        """Raises UnsupportedError for a method that is left out."""
        kind = type(self).__name__
        if name in METHODS:
            refuse(f"{kind}.{name}", METHODS[name])
        raise AttributeError(f"an {kind} has no {name!r}")

    # --- for the two executors -------------------------------------------------------------------

    def _read(self, request_id: int | None, waiter: Waiter) -> list[Response] | None:
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

    def _forget(self, waiter: Waiter) -> None:
        """The waiter is to be woken no longer."""
        with self._lock:
            self._core.forget(waiter)

    def _shut_down(self) -> bool:
        """Returns whether the executor was open until now."""
        with self._lock:
            was_open = not self._core.closed
            self._core.shut_down()
        return was_open

    def _engines_died(self, error: TandemError) -> None:
        """Nothing more can be run, as another thread says."""
        with self._lock:
            self._core.stop(error)


def _leave_all() -> None:
    for each in list(_all):
        each.leave()


_all: weakref.WeakSet[ExecutorCalls] = weakref.WeakSet()
os.register_at_fork(after_in_child=_leave_all)
