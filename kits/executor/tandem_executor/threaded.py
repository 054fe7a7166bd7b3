"""The executor for programs with threads."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import NoReturn, overload

import uvloop

from tandem.errors import TandemError
from tandem.hooks.classifiers.contract import ExternalClassifierHook
from tandem_executor.calls import Calls, awaited
from tandem_executor.config import ExecutorConfig, checked_copy
from tandem_executor.core import ExecutorCore
from tandem_executor.left_out import METHODS, refuse
from tandem_executor.live import Live
from tandem_executor.remote import RemoteBackend
from tandem_executor.requests import Request
from tandem_executor.responses import Response
from tandem_executor.serving import Elsewhere, serving
from tandem_executor.statistics import IterationStats, RequestStatsPerIteration
from tandem_executor.waiters import Waiter

_STOP_SECONDS = 10.0
"""Longest wait for the thread at shutdown."""


class Executor:
    """Runs requests at the router of a Tandem stack, "host:port", or on engines of its own, with
    the model of a folder. Any thread may call it; a thread of its own talks to the router. As a
    context manager it is shut down at the end.
    """

    def __init__(
        self, where: str | bytes | os.PathLike[str], executor_config: ExecutorConfig | None = None
    ) -> None:
        """Does not wait for a router elsewhere: requests do. Waits for engines of its own.

        Raises ConfigError where `where` is neither, or the configuration cannot be used, and
        StartError where the engines do not start.
        """
        config = checked_copy(executor_config)
        lock = threading.Lock()
        core = ExecutorCore(
            max_queue_size=config.max_queue_size,
            max_open_sequences=config.max_open_sequences,
            max_unread_tokens=config.max_unread_tokens,
            max_logits_rows=config.max_logits_rows,
            iter_stats_max_iterations=config.iter_stats_max_iterations,
            request_stats_max_iterations=config.request_stats_max_iterations,
        )
        live = Live(config.logits_post_processor_config)

        def stop(error: TandemError) -> None:
            with lock:
                core.stop(error)

        self._serving = serving(where, config, live, stop)
        self._backend = RemoteBackend(config, core, lock, live)
        self._calls = Calls(
            config,
            core,
            lock,
            self._backend.turn_soon_from_elsewhere,
            refused=lambda: self._serving.refused,
            scores=self._serving.own,
        )
        self._router = self._serving.start()
        if not isinstance(self._serving, Elsewhere):
            atexit.register(self.shutdown)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tandem-executor", daemon=True)
        self._thread.start()
        self._started.wait()

    def enqueue_request(self, request: Request) -> int:
        """Returns the request's id, without waiting. What is wrong with the request comes as its
        response. Raises FullError where `max_queue_size` requests wait, and ShutDownError.
        """
        return self.enqueue_requests([request])[0]

    def enqueue_requests(self, requests: Sequence[Request]) -> list[int]:
        """Returns their ids, in order: of all of them, or of none where it raises FullError."""
        return self._calls.enqueue(requests)

    @overload
    def await_responses(
        self, id: Sequence[int], timeout: timedelta | float | None = None
    ) -> list[list[Response]]: ...

    @overload
    def await_responses(
        self, *, ids: Sequence[int], timeout: timedelta | float | None = None
    ) -> list[list[Response]]: ...

    @overload
    def await_responses(
        self, id: int | timedelta | None = None, timeout: timedelta | float | None = None
    ) -> list[Response]: ...

    def await_responses(
        self,
        id: int | Sequence[int] | timedelta | None = None,
        timeout: timedelta | float | None = None,
        *,
        ids: Sequence[int] | None = None,
    ) -> list[Response] | list[list[Response]]:
        """Responses that are ready, once there is one: of any request, of the one with this id, or
        a list for each of these ids, in their order. A timeout (of seconds, or a timedelta, which
        may also be given alone) bounds the whole call; where it passes there may be none.

        The id of a request whose final response was read, or of none, gives an error response.
        Raises ShutDownError; a call that waits at shutdown returns without it.
        """
        asked, seconds = awaited(id, timeout, ids)
        self._calls.check_open()
        until = time.monotonic() + seconds
        if asked is None or isinstance(asked, int):
            return self._await(asked, until)
        return [self._await(each, until) for each in asked]

    def get_num_responses_ready(self, id: int | None = None) -> int:
        """How many responses `await_responses` would return now, without an id of all requests."""
        return self._calls.ready(id)

    def cancel_request(self, id: int) -> None:
        """End a request: it gets a final response with CANCELLED. One that has ended is not
        touched.
        """
        self._calls.cancel(id)

    def get_latest_iteration_stats(self) -> list[IterationStats]:
        """What the executor was at in each iteration since the last call, the oldest first, as far
        as `iter_stats_max_iterations` of them are kept.
        """
        return self._calls.iteration_stats()

    def get_latest_request_stats(self) -> list[RequestStatsPerIteration]:
        """The requests of each iteration since the last call, the oldest first, as far as
        `request_stats_max_iterations` of them are kept.
        """
        return self._calls.request_stats()

    def register_external_classifier_hook(self, hook: ExternalClassifierHook) -> None:
        """Have a classifier of the program's own judge the outputs that begin from now on, in the
        thread of the engines. Its `startup` and `shutdown`, if it has some, are the program's to
        call. How outputs are held back says `worker_settings`, under `classifiers`.

        Raises LoadError for what is no classifier, or has the name of another; UnsupportedError
        where the engines are not in this process; ShutDownError.
        """
        self._calls.check_open()
        self._serving.register_external_classifier_hook(hook, lambda: None)

    def can_enqueue_requests(self) -> bool:
        """Whether it has not been shut down."""
        return not self._calls.closed

    def shutdown(self) -> None:
        """Cancel what is open, wake whoever waits, and stop. Later calls raise ShutDownError, but
        this one.
        """
        atexit.unregister(self.shutdown)
        if self._calls.shut_down():
            with suppress(RuntimeError):  # the thread has failed, and its loop is closed
                self._loop.call_soon_threadsafe(self._running.cancel)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)
        self._serving.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def __getattr__(self, name: str) -> NoReturn:
        """Raises UnsupportedError for a method that is left out."""
        if name in METHODS:
            refuse(f"Executor.{name}", METHODS[name])
        raise AttributeError(f"an Executor has no {name!r}")

    # --- inside ----------------------------------------------------------------------------------

    def _await(self, request_id: int | None, until: float) -> list[Response]:
        woken = threading.Lock()  # held until then: half the calls of an Event
        waiter = Waiter(request_id, woken.release)
        responses: list[Response] | None = None
        try:
            woken.acquire()
            while (responses := self._calls.read(request_id, waiter)) is not None:
                if responses:
                    return responses
                left = min(until - time.monotonic(), threading.TIMEOUT_MAX)
                if not woken.acquire(timeout=max(0.0, left)):
                    break
            return []
        finally:
            if not responses:
                self._calls.forget(waiter)

    def _run(self) -> None:
        """The thread: it ends at shutdown."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._backend.run(self._router, self._started.set))
        await asyncio.wait([self._running])
