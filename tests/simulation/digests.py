"""Whether clients, routers and workers say what they said: `python tests/simulation/digests.py`.

digests.txt has the digest of each seed of the simulation, ten a line behind the first one's number.
A change that moves code changes none; one that changes what is said names the seeds and writes
digests.txt anew. `replay.py SEED --messages` shows what a seed says, to be compared with the commit
before.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ in ("__main__", "__mp_main__"):
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from simulated.digest import digest  # noqa: E402 - the path comes first
from simulated.loop import BrokenRule  # noqa: E402 - the path comes first
from simulated.world import World  # noqa: E402 - the path comes first

FILE = HERE / "digests.txt"
SEEDS = 1_000
A_LINE = 10
SHOWN = 20
"""Changed seeds that are named."""


def recorded() -> dict[int, str]:
    """The digest of each seed, as digests.txt has it."""
    return dict(_read(FILE.read_text(encoding="utf-8")))


def _read(text: str) -> Iterator[tuple[int, str]]:
    for line in text.splitlines():
        first, *digests = line.split()
        yield from enumerate(digests, int(first))


def written(digests: Mapping[int, str]) -> str:
    """The text of digests.txt."""
    every = range(0, len(digests), A_LINE)
    lines = ([digests[seed] for seed in range(at, at + A_LINE) if seed in digests] for at in every)
    return "".join(f"{at} {' '.join(line)}\n" for at, line in zip(every, lines, strict=True))


def run(seed: int) -> tuple[int, str]:
    """The seed, and its digest or which rule it breaks."""
    logging.disable(logging.CRITICAL)
    world = World(seed)
    try:
        world.run()
    except BrokenRule as error:
        return seed, f"breaks a rule: {error}"
    return seed, digest(world)


def main() -> int:
    """Exit status 1 where a digest is another than the recorded one, or a rule is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 0 on")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help=f"write {FILE.name}, with all seeds")
    options = parser.parse_args()
    seeds = range(SEEDS if options.write else options.seeds)
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        found = dict(pool.imap_unordered(run, seeds, chunksize=A_LINE))
    broken = [seed for seed in seeds if found[seed].startswith("breaks")]
    for seed in broken[:SHOWN]:
        print(f"seed {seed} {found[seed]}")
    if options.write and not broken:
        FILE.write_text(written(found), encoding="utf-8")
        return 0
    known = recorded()
    changed = [seed for seed in seeds if seed not in broken and found[seed] != known.get(seed)]
    for seed in changed[:SHOWN]:
        print(
            f"seed {seed} says something else: python tests/simulation/replay.py {seed} --messages"
        )
    print(f"{len(changed)} of {len(seeds)} seeds say something else than {FILE.name} has")
    return 1 if changed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
