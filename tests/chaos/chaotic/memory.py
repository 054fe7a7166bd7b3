"""What the processes of a stack hold as time goes on: memory of their own, files and threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import linear_regression, mean

import psutil

from chaotic.fleet import Fleet

WARM_SHARE = 1 / 3
"""Of the time, at its beginning: caches and histories with a bound fill."""
MOST_GROWTH = 0.05
"""How much a process may grow in the rest of the time, as a share of itself."""
_MIB = 1024 * 1024


@dataclass
class Held:
    """Samples of one process, at equal distances."""

    memory: list[float] = field(default_factory=list)
    """MiB of its own: pages that nobody shares with it."""
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def sample(self, process: psutil.Process) -> None:
        self.memory.append(process.memory_full_info().uss / _MIB)
        self.files.append(process.num_fds())
        self.threads.append(process.num_threads())


async def watch(fleet: Fleet, *, every_seconds: float) -> dict[str, Held]:
    """Sample every process of the stack until it is cancelled. Returns what was seen."""
    components = fleet.stack.components
    processes = {name: psutil.Process(each.pid) for name, each in components.items()}
    held = {name: Held() for name in processes}
    try:
        while True:
            for name, process in processes.items():
                held[name].sample(process)
            await asyncio.sleep(every_seconds)
    except asyncio.CancelledError:
        return held


def growth(samples: Sequence[float]) -> float:
    """By how much they grow from the end of the warm-up to the last one, along a straight line."""
    warm = _warm(samples)
    slope, _ = linear_regression(range(len(warm)), warm)
    return slope * (len(warm) - 1)


def grown(name: str, held: Held) -> list[str]:
    """What of a process is not flat."""
    faults = []
    if growth(held.memory) > MOST_GROWTH * mean(_warm(held.memory)):
        faults.append(f"{name}: its memory grows by {growth(held.memory):.1f} MiB")
    for what, counts in (("files", held.files), ("threads", held.threads)):
        third = len(counts) // 3
        if min(counts[-third:]) > max(counts[third : 2 * third]):
            faults.append(f"{name}: its open {what} grow from {counts[third]} to {counts[-1]}")
    return faults


def line(name: str, held: Held) -> str:
    """A row of a table: MiB after the warm-up, at the end and grown; files and threads."""
    warm = _warm(held.memory)
    last = max(1, len(warm) // 10)
    cells = (
        name,
        f"{mean(warm[:last]):.1f}",
        f"{mean(warm[-last:]):.1f}",
        f"{growth(held.memory):+.1f}",
        f"{held.files[len(held.files) // 3]} to {held.files[-1]}",
        f"{held.threads[len(held.threads) // 3]} to {held.threads[-1]}",
    )
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| process | MiB after the warm-up | MiB at the end | growth, MiB | open files | threads |\n"
    "| --- | --- | --- | --- | --- | --- |"
)


def _warm(samples: Sequence[float]) -> Sequence[float]:
    return samples[int(len(samples) * WARM_SHARE) :]
