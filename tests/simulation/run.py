"""Run many seeds of the simulation: `python tests/simulation/run.py --seeds 20000`.

It uses both cores, prints how far it is, and at the end what the requests came to. The exit status
is 1 where a rule is broken; each such seed is printed with the command that replays it.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
if __name__ in ("__main__", "__mp_main__"):
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from simulated.world import World  # noqa: E402 - the path comes first

BLOCK = 20
"""Seeds that a process takes at once."""


class Block(NamedTuple):
    """What some seeds came to."""

    seeds: int
    broken: dict[int, str]
    faulty: Counter[str]
    """Ends of the requests of seeds with faults: finished, or an error's code."""


def run_block(seeds: range, *, stop_at_first: bool = False) -> Block:
    """Run them; a broken rule ends its own seed only, unless `stop_at_first`."""
    logging.disable(logging.CRITICAL)
    broken: dict[int, str] = {}
    faulty: Counter[str] = Counter()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - whatever a broken core raises is what is looked for
            broken[seed] = f"{type(error).__name__}: {error}"
        if world.plan.faulty:
            faulty += world.ends()
        if broken and stop_at_first:
            break
    return Block(len(seeds), broken, faulty)


def run_blocks(first: int, seeds: int, processes: int, *, stop_at_first: bool) -> Iterator[Block]:
    """In any order."""
    run = partial(run_block, stop_at_first=stop_at_first)
    blocks = [
        range(begin, min(begin + BLOCK, first + seeds))
        for begin in range(first, first + seeds, BLOCK)
    ]
    if processes == 1:
        yield from map(run, blocks)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(run, blocks)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-at-first", action="store_true", help="end at the first broken rule")
    options = parser.parse_args()
    began, done = time.monotonic(), 0
    broken: dict[int, str] = {}
    faulty: Counter[str] = Counter()
    blocks = run_blocks(
        options.first, options.seeds, options.processes, stop_at_first=options.stop_at_first
    )
    for block in blocks:
        done += block.seeds
        faulty += block.faulty
        for seed, why in block.broken.items():
            broken[seed] = why
            print(f"\nseed {seed}: {why}\n  python tests/simulation/replay.py {seed}", flush=True)
        seconds = time.monotonic() - began
        if sys.stdout.isatty() or done == options.seeds:
            print(f"\r{done} of {options.seeds} seeds, {seconds:.0f} s", end="", flush=True)
        if broken and options.stop_at_first:
            print()
            return 1
    print(f"\n{share(faulty):.1%} of the requests of faulty runs finished: {dict(faulty)}")
    print(f"{len(broken)} seeds break a rule")
    return 1 if broken else 0


def share(ends: Counter[str]) -> float:
    """Of requests that finished."""
    return ends["finished"] / max(1, ends.total())


if __name__ == "__main__":
    sys.exit(main())
