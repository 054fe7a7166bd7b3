"""What a figure depends on: the machine, and the CPU time of processes."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path


def describe() -> str:
    """One line that names the machine a table was measured on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    versions = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{cpu}, {cores} cores, {gib:.0f} GiB, {versions}"


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process, from its CPU clock, to the nanosecond."""
    return time.clock_gettime(~pid << 3 | 2)


def children(pid: int) -> list[int]:
    """The processes that a process has started: of a worker's some are SGLang's schedulers."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def memory_bytes(pid: int) -> int:
    """Proportional set size: shared pages are split between the processes that map them."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)
