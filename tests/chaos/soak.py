"""Let real processes run for long, with clients that go away in the midst:
`python tests/chaos/soak.py --minutes 30`.

Six of ten slots of the decode workers have a request at all times, a tenth of the clients go away
before they are answered, and every token is compared with what the sim engine says. The exit status
is 1 where an answer was wrong, anything failed or hung, a process grew after its warm-up, or
anything was left open.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(HERE.parents[1]), str(HERE), str(HERE.parent / "e2e")]

from chaotic import memory  # noqa: E402 - the path comes first
from chaotic.book import Book  # noqa: E402
from chaotic.fleet import Fleet, running  # noqa: E402
from chaotic.load import Load  # noqa: E402
from chaotic.memory import Held  # noqa: E402
from sim_oracle import Oracle  # noqa: E402

SLOTS, DECODE = 64, 2
LOAD = 0.6
"""The share of the decode workers' slots that is taken."""
LEAVE = 0.1
_SAMPLES = 180


@dataclass(frozen=True)
class Soaked:
    """What came of it."""

    book: Book
    held: dict[str, Held]
    open: list[str]
    """What was left open."""

    @property
    def faults(self) -> list[str]:
        faults = [*self.book.wrong[:5], *self.open]
        faults += [f"{count} failed: {code}" for code, count in self.book.failed.items()]
        if self.book.hung:
            faults.append(f"{self.book.hung} requests hang")
        return faults


async def soak(fleet: Fleet, *, seconds: float, clients: int, seed: int) -> Soaked:
    """Requests without a pause, for so long."""
    book = Book(Oracle())
    load = Load(fleet.stack.url, book, random.Random(seed), leave=LEAVE)
    watching = asyncio.create_task(memory.watch(fleet, every_seconds=seconds / _SAMPLES))
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(clients))
        await asyncio.sleep(seconds)
        watching.cancel()
        load.stop()
    return Soaked(book, await watching, await fleet.still_open())


def main() -> None:
    options = _options()
    seconds, clients = options.minutes * 60, round(LOAD * SLOTS * DECODE)
    print(f"seed {options.seed}: {clients} clients for {options.minutes:g} minutes", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = options.run_dir or Path(folder)
        soaked = asyncio.run(_run(run_dir, seconds=seconds, clients=clients, seed=options.seed))
    book = soaked.book
    print(memory.HEAD)
    for name, held in soaked.held.items():
        print(memory.line(name, held))
    print(
        f"{book.requests} requests in {time.monotonic() - began:.0f} s, {book.left} of them left by"
        f" their clients; {book.failed.total()} failed, {len(book.wrong)} wrong, {book.hung} hung;"
        f" longest stall {book.longest_stall:.1f} s; left open: {len(soaked.open)}"
    )
    faults = soaked.faults
    for name, held in soaked.held.items():
        faults += memory.grown(name, held)
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(f"{len(faults)} faults" if faults else 0)


async def _run(run_dir: Path, *, seconds: float, clients: int, seed: int) -> Soaked:
    async with running(run_dir, decode=DECODE, slots=SLOTS) as fleet:
        return await soak(fleet, seconds=seconds, clients=clients, seed=seed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--run-dir", type=Path, help="where logs stay; else they are deleted")
    return parser.parse_args()


if __name__ == "__main__":
    main()
