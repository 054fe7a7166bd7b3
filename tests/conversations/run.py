"""Compare prompts with the store of prefixes and without: `python tests/conversations/run.py`.

Random conversations are read by a frontend's own code in both ways, with the tokenizers and chat
templates of families.toml, which npm brings once, and variants of the shipped model's. A run goes
on where the last one of its seed has ended. At the end a table says what came of them; the exit
status is 1 where a prompt differed. `FAMILY --seed SEED --batch NUMBER` reads one batch again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from conversing.compared import BATCH, Family, Tally  # noqa: E402 - the path comes first
from conversing.families import VARIANTS, Left, folder_of, published  # noqa: E402

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each job is one process, and one thread
FOLDER = HERE.parents[1] / "build" / "conversations"
_COLUMNS = ("conversations", "requests", "refused", "tokens", "known", "checks", "differences")


class Part(NamedTuple):
    """One family's share of a run."""

    family: str
    folder: Path
    seed: int
    batches: int
    until: float
    """By the clock of the machine."""


def main() -> int:
    options = _options()
    names = options.families or [*published(), *VARIANTS]
    chosen = [name for name in names if _is_there(name, options.folder)]
    if not chosen:
        return 0
    if options.batch is not None:
        family = Family(chosen[0], folder_of(chosen[0], options.folder))
        tally = family.compare(options.seed, options.batch)
        print(_row(chosen[0], tally), *tally.differences, sep="\n")
        return 1 if tally.differences else 0
    batches = math.ceil(options.conversations / len(chosen) / BATCH)
    until = time.time() + options.minutes * 60
    parts = [Part(name, options.folder, options.seed, batches, until) for name in chosen]
    return _run(parts, options.jobs)


def _run(parts: list[Part], jobs: int) -> int:
    tallies: dict[str, Tally] = {}
    context = multiprocessing.get_context("fork")  # what is imported need not be again
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        given = {pool.submit(carry_out, part): part.family for part in parts}
        for done in as_completed(given):
            tally = tallies[given[done]] = done.result()
            print(_row(given[done], tally), *tally.differences[:3], sep="\n", flush=True)
    print(table({part.family: tallies[part.family] for part in parts}))
    return 1 if any(tally.differences for tally in tallies.values()) else 0


def carry_out(part: Part) -> Tally:
    """Compare what is left of a family's batches. What was done is in a file of the folder."""
    file = part.folder / f"{part.family}-{part.seed}.json"
    tally = Tally(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else Tally()
    family = Family(part.family, folder_of(part.family, part.folder))
    while (batch := tally.conversations // BATCH) < part.batches and time.time() < part.until:
        tally.add(family.compare(part.seed, batch))
        written = file.with_suffix(".part")
        written.write_text(json.dumps(dataclasses.asdict(tally)), encoding="utf-8")
        written.replace(file)
    return tally


def table(tallies: dict[str, Tally]) -> str:
    """In Markdown."""
    total = Tally()
    for tally in tallies.values():
        total.add(tally)
    head = f"| family | {' | '.join(_COLUMNS)} |\n| --- |{' --: |' * len(_COLUMNS)}"
    rows = [_row(name, tally) for name, tally in tallies.items()]
    return "\n".join(["", head, *rows, _row("all", total)])


def _row(name: str, tally: Tally) -> str:
    share = f"{tally.known / max(tally.tokens, 1):.0%}"
    numbers = (tally.conversations, tally.requests, tally.refused, tally.tokens)
    cells = [f"{each:,}" for each in numbers]
    cells += [share, f"{tally.checks:,}", f"{len(tally.differences):,}"]
    return f"| {name} | {' | '.join(cells)} |"


def _is_there(name: str, folder: Path) -> bool:
    try:
        folder_of(name, folder)
    except Left as error:
        print(f"{name} is left out: {error}", flush=True)
        return False
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("families", nargs="*", help="which; all where none is named")
    parser.add_argument("--conversations", type=int, default=100_000, help="of all families")
    parser.add_argument("--seed", type=int, default=1, help="another one makes other conversations")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for all of them")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--batch", type=int, help="read one of a family alone, and show it")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where a run is kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
