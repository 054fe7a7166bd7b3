"""Runs in the process that SGLang puts between a worker and the schedulers of its data-parallel
ranks: it gives each of them its requests.
"""

from __future__ import annotations

import functools
import signal
import socket
from collections.abc import Sequence
from typing import Any

import zmq
from sglang.srt.entrypoints import engine
from sglang.srt.managers.data_parallel_controller import (
    DataParallelController,
    run_data_parallel_controller_process,
)
from sglang.srt.managers.io_struct import sock_recv

from tandem_sglang import last_words
from tandem_sglang.additions import Additions, TokenAddresses

_FEED_MILLISECONDS = 1000
"""SGLang's own watchdog of this loop wants to hear of it, where an operator has switched it on."""


def put_in_place(additions: Additions) -> None:
    """Have SGLang start this process in place of its own. Runs in the worker's process, before an
    engine starts.
    """
    engine.run_data_parallel_controller_process = functools.partial(
        run, additions.further, additions.errors
    )


def run(
    further: Sequence[TokenAddresses], errors: socket.socket | None = None, **given: Any
) -> None:
    """SGLang's process, with a loop that waits. `further`: of the worker's processes from the
    second, whose requests it gives out too. `errors`: `Additions.errors`.
    """
    last_words.join(errors, "controller of data-parallel ranks")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the worker has requests to finish
    DataParallelController.event_loop = functools.partialmethod(_serve, further)
    run_data_parallel_controller_process(**given)


def _serve(controller: Any, further: Sequence[TokenAddresses]) -> None:
    """Until all schedulers have left. SGLang's own loop asks its socket without a pause, and keeps
    a core busy; and it would serve on where one of them was killed.
    """
    poller = zmq.Poller()
    inbox = controller.recv_from_tokenizer
    for each in further:
        inbox.connect(each.requests)
    poller.register(inbox, zmq.POLLIN)
    schedulers = _schedulers(controller)
    for end in schedulers:
        poller.register(end, zmq.POLLIN)
    while schedulers:
        controller.soft_watchdog.feed()
        for ready, _ in poller.poll(_FEED_MILLISECONDS):
            if ready is inbox:
                _forward(controller)
                continue
            poller.unregister(ready)
            if (ended := schedulers.pop(ready)) is None:
                continue
            ended.join()
            if ended.exitcode:
                raise ChildProcessError(f"scheduler {ended.pid} ended with {ended.exitcode}")


def _schedulers(controller: Any) -> dict[int, Any]:
    """The schedulers' processes, by the file that can be read at their end. None: it is a child of
    the worker, who sees how it ends; its pipe closes. Until 0.5.22 is the oldest: the attribute may
    be missing.
    """
    prelaunched = getattr(controller, "prelaunched_schedulers", None)
    if prelaunched:
        return {pipe.fileno(): None for _, pipe in prelaunched.values()}
    return {process.sentinel: process for process in controller.scheduler_procs}


def _forward(controller: Any) -> None:
    """Pass on every request that has arrived."""
    while True:
        try:
            request = sock_recv(controller.recv_from_tokenizer, flags=zmq.NOBLOCK)
        except zmq.Again:
            return
        controller._request_dispatcher(request)
