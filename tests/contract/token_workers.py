"""A decode worker with two token processes, and prefill's beside it."""

from __future__ import annotations

from dataclasses import replace

import psutil
from worker_pair import WorkerProcess, port_of

from tandem.worker import process_link

READY_SECONDS = 400.0


class Workers:
    """Each process is a worker to a router, at a port of its own."""

    def __init__(self, prefill: WorkerProcess, first: WorkerProcess, deadline: float) -> None:
        """Returns when all serve; `first`: decode's."""
        self.prefill = prefill
        self.first = first
        served = first.wait_for("serving", deadline, count=2)
        own = next(each for each in served if not each["worker"].endswith("-2"))
        first.port = port_of(own)

    def second(self, start: int = 1) -> WorkerProcess:
        """As a router knows it, since its so many-th start."""
        served = [each for each in self.first.said("serving") if each["worker"].endswith("-2")]
        return replace(self.first, port=port_of(served[start - 1]))

    def second_process(self) -> psutil.Process:
        children = psutil.Process(self.first.process.pid).children()
        (found,) = (each for each in children if process_link.PROGRAM in " ".join(each.cmdline()))
        return found
