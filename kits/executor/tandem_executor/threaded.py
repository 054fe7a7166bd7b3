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
from typing import overload

import uvloop

from tandem.hooks.classifiers.contract import ExternalClassifierHook
from tandem_executor.calls import ExecutorCalls, awaited
from tandem_executor.config import ExecutorConfig
from tandem_executor.responses import Response
from tandem_executor.waiters import Waiter

_STOP_SECONDS = 10.0
"""Longest wait for the thread at shutdown."""


class Executor(ExecutorCalls):
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
        super().__init__(where, executor_config)
        self._nudge = self._backend.turn_soon_from_elsewhere
        self._router = self._serving.start()
        if self._serving.own:
            atexit.register(self.shutdown)
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tandem-executor", daemon=True)
        self._thread.start()
        self._started.wait()

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
        self._core.check_open()
        until = time.monotonic() + seconds
        if asked is None or isinstance(asked, int):
            return self._await(asked, until)
        return [self._await(each, until) for each in asked]

    def register_external_classifier_hook(self, hook: ExternalClassifierHook) -> None:
        """Have a classifier of the program's own judge the outputs that begin from now on, in the
        thread of the engines. Its `startup` and `shutdown`, if it has some, are the program's to
        call. How outputs are held back says `worker_settings`, under `classifiers`.

        Raises LoadError for what is no classifier, or has the name of another; UnsupportedError
        where the engines are not in this process; ShutDownError.
        """
        self._core.check_open()
        self._serving.register_external_classifier_hook(hook, lambda: None)

    def shutdown(self) -> None:
        """Cancel what is open, wake whoever waits, and stop. Later calls raise ShutDownError, but
        this one.
        """
        atexit.unregister(self.shutdown)
        if self._shut_down():
            with suppress(RuntimeError):  # the thread has failed, and its loop is closed
                self._loop.call_soon_threadsafe(self._running.cancel)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)
        self._serving.close()

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # --- inside ----------------------------------------------------------------------------------

    def _await(self, request_id: int | None, until: float) -> list[Response]:
        woken = threading.Lock()  # held until then: half the calls of an Event
        waiter = Waiter(request_id, woken.release)
        responses: list[Response] | None = None
        try:
            woken.acquire()
            while (responses := self._read(request_id, waiter)) is not None:
                if responses:
                    return responses
                left = min(until - time.monotonic(), threading.TIMEOUT_MAX)
                if not woken.acquire(timeout=max(0.0, left)):
                    break
            return []
        finally:
            if not responses:
                self._forget(waiter)

    def _run(self) -> None:
        """The thread: it ends at shutdown."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = self._loop.create_task(self._backend.run(self._router, self._started.set))
        await asyncio.wait([self._running])
