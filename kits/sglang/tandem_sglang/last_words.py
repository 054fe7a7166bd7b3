"""What SGLang's processes print on standard error goes on to the worker's, and the end of it is
kept: a start or an engine that fails says which of them failed, and what it printed.

Each process gives the worker the end of a pipe of its own, over a socket that it was started with,
so that also what a library prints before it aborts is there when the process is not.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_STDERR = 2
_KEPT_BYTES = 4096
"""How much is kept of each process's output."""
_MOST_LINES = 8
"""How many processes of a start that hangs are told of."""
_READ_BYTES = 65536
_ROUNDS = 16
_NAME_BYTES = 256
_REPORTED = -signal.SIGQUIT
"""Exit status of the controller of data-parallel ranks when a rank, its child, reports a failure.

"""
_FAILURES = (b" hit an exception: ", b"a thread of SGLang has died")
"""What a process prints before it reports by SIGQUIT that it has failed: SGLang's own words, and
those of threads.py.
"""


class Told(NamedTuple):
    """The failure of an engine process."""

    who: str
    """Which process failed and how it ended, as far as known."""
    printed: str
    """The end of what it printed; empty where nothing is known."""


UNKNOWN = Told("one of its processes ended", "")


@dataclass(slots=True)
class _Process:
    name: str
    words: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> bool:
        """Whether it says with this that it has failed."""
        self.words += data
        failed = any(each in self.words for each in _FAILURES)
        del self.words[:-_KEPT_BYTES]
        return failed

    def text(self) -> str:
        """The kept output from its first whole line on; a single line stays whole."""
        text = self.words.decode(errors="replace").strip()
        return text if len(self.words) < _KEPT_BYTES else text.partition("\n")[2] or text


class LastWords:
    """The last output of all processes of an engine on this node, until `close`."""

    def __init__(self) -> None:
        self._inbox, self.outbox = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        """`outbox` is for those who `join`, and may be given to a process as it is spawned."""
        self._inbox.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._inbox, selectors.EVENT_READ)
        self._processes: dict[int, _Process] = {}
        self._over: dict[int, str] = {}
        """How those are that said that they failed, or that print no more, in order."""
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sglang-stderr", daemon=True)
        self._thread.start()

    def of_failure(self, exits: Mapping[int, int | None]) -> Told:
        """`exits`: the exit statuses of the worker's own children by pid, as of multiprocessing."""
        with self._lock:
            self._take()
            for pid, status in exits.items():
                if status and status != _REPORTED:
                    return self._told(pid, _how(status))
            return next(itertools.starmap(self._told, self._over.items()), UNKNOWN)

    def of_hang(self) -> str:
        """The last line of each process."""
        with self._lock:
            self._take()
            said = [
                f"{each.name}: {each.text().rpartition(chr(10))[2] or '(nothing)'}"
                for each in self._processes.values()
            ]
        return "; ".join(said[:_MOST_LINES])

    def close(self) -> None:
        """Once the processes have ended. Bounded."""
        self._closed = True
        with contextlib.suppress(OSError):
            self.outbox.send(b"")  # it wakes
        self._thread.join(1.0)

    def _told(self, pid: int, how: str) -> Told:
        process = self._processes.get(pid)
        if process is None:
            return Told(f"process {pid}, which was starting, {how}", "")
        return Told(f"{process.name} (process {pid}) {how}", process.text())

    def _run(self) -> None:
        while not self._closed:
            self._selector.select()
            with self._lock:
                self._take()
        with self._lock:
            self._take()
            for key in list(self._selector.get_map().values()):
                self._forget(key)
            self._selector.close()
        self.outbox.close()

    def _take(self) -> None:
        """All that is there by now, or much of it. Nothing once it is closed: processes that fail
        together report one after the other, some when a failed start has been cleared away.
        """
        for _ in range(_ROUNDS if self._selector.get_map() else 0):
            more = [self._read(key) for key, _ in self._selector.select(0)]
            if not any(more):
                return

    def _read(self, key: selectors.SelectorKey) -> bool:
        """Whether there may be more."""
        if key.fileobj is self._inbox:
            self._meet()
            return True
        data = os.read(key.fd, _READ_BYTES)
        if not data:
            self._forget(key)
            self._over.setdefault(key.data, "ended")
            return False
        if self._processes[key.data].add(data):
            self._over.setdefault(key.data, "failed")
        _pass_on(data)
        return True

    def _meet(self) -> None:
        told, ends, _, _ = socket.recv_fds(self._inbox, _NAME_BYTES, 1)
        for end in ends:
            pid, _, name = told.decode().partition(" ")
            self._processes[int(pid)] = _Process(name)
            self._selector.register(end, selectors.EVENT_READ, int(pid))

    def _forget(self, key: selectors.SelectorKey) -> None:
        self._selector.unregister(key.fileobj)
        if key.fileobj is self._inbox:
            self._inbox.close()
        else:
            os.close(key.fd)


def join(outbox: socket.socket | None, name: str) -> None:
    """Have a process of SGLang's, this one, print by way of the worker from now on."""
    if outbox is None:
        return
    theirs, own = os.pipe()
    socket.send_fds(outbox, [f"{os.getpid()} {name}".encode()], [theirs])
    os.close(theirs)
    os.dup2(own, _STDERR)
    os.close(own)


def _how(status: int) -> str:
    if status > 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _pass_on(data: bytes) -> None:
    """To this process's standard error; where that takes no more, it is nobody's."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(_STDERR, data) :]
