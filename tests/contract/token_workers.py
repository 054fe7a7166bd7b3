"""A decode worker with two token processes, and prefill's beside it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import psutil
from worker_pair import WorkerProcess

from tandem.worker import process_link

READY_SECONDS = 400.0


class Workers:
    """Each process is a worker to a router, at a port of its own."""

    def __init__(self, prefill: WorkerProcess, first: WorkerProcess, deadline: float) -> None:
        """Returns when all serve; `first`: decode's."""
        self.prefill = prefill
        self.first = first
        while len(served := said(first, "serving")) < 2:
            assert first.process.poll() is None, first.log.read_text()
            assert time.monotonic() < deadline, first.log.read_text()
            time.sleep(0.05)
        own = next(each for each in served if not each["worker"].endswith("-2"))
        first.port = _port(own)

    def second(self, start: int = 1) -> WorkerProcess:
        """As a router knows it, since its so many-th start."""
        served = [each for each in said(self.first, "serving") if each["worker"].endswith("-2")]
        return replace(self.first, port=_port(served[start - 1]))

    def second_process(self) -> psutil.Process:
        children = psutil.Process(self.first.process.pid).children()
        (found,) = (each for each in children if process_link.PROGRAM in each.cmdline())
        return found


def said(worker: WorkerProcess, message: str) -> list[dict[str, str]]:
    """These entries of its log."""
    lines = (line for line in worker.log.read_text().splitlines() if line.startswith("{"))
    return [entry for line in lines if (entry := json.loads(line))["message"] == message]


async def wait_for(worker: WorkerProcess, message: str, count: int) -> None:
    """Until its log has it so often."""
    deadline = time.monotonic() + READY_SECONDS
    while len(said(worker, message)) < count:
        assert worker.process.poll() is None, worker.log.read_text()
        assert time.monotonic() < deadline, worker.log.read_text()
        await asyncio.sleep(0.05)


def _port(served: dict[str, str]) -> int:
    return int(served["address"].rpartition(":")[2])
