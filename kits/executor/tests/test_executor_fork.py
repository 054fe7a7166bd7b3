"""What a fork of the program finds of its executor."""

from __future__ import annotations

import os

from tandem_executor import AsyncExecutor, Request, ShutDownError


def test_a_fork_cannot_use_the_executor_and_waits_for_nobody() -> None:
    """Without a connection: gRPC itself may end a process that was forked while it works."""
    executor = AsyncExecutor("127.0.0.1:1")
    executor._nudge = lambda: None
    request = Request([1], max_tokens=1)
    read, write = os.pipe()
    with executor._lock:  # as a thread of the program may hold it
        child = os.fork()
        if child == 0:
            said = "it passed"
            try:
                executor.enqueue_requests([request])
            except BaseException as error:  # noqa: BLE001 - the child says what it was
                said = type(error).__name__
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        assert pipe.read() == ShutDownError.__name__
    os.waitpid(child, 0)
    assert executor.enqueue_requests([request]) == [1], "the program's own goes on"
