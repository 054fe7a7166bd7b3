"""Try every deliberate bug: `make mutants`, or `python tests/mutation/run.py`.

Each is put into a copy of the tree. There the simulation runs, and where that notices nothing, the
unit tests of the file. The exit status is 1 unless the simulation alone kills nine of ten of those
in code that it runs, and both together every one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from mutants.generate import generate
from mutants.promised import broken_promises
from mutants.table import Mutant, faults, load
from mutants.trial import Result, run
from promises import proofs

SEEDS = 600
"""Runs of the simulation that a mutant must survive before the tests are asked."""
SHARE = 0.9
"""What the simulation alone must kill of the mutants in code that it runs."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of the simulation ({SEEDS})")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", default="*", help="those of this file alone, as in `ways`")
    parser.add_argument("--only", default="", help="mutants whose file or words hold this text")
    parser.add_argument("--simulation-alone", action="store_true", help="do not run the tests")
    parser.add_argument("--generate", metavar="FILE", help="bugs of the usual kinds, of this file")
    parser.add_argument("--function", default="", help="of this one of its functions alone")
    parser.add_argument("--tests", nargs="+", default=(), help="which tests are to notice those")
    parser.add_argument("--promises", action="store_true", help="those that name a promise")
    parser.add_argument("--check", action="store_true", help="only whether each can be applied")
    options = parser.parse_args()
    mutants = [
        mutant
        for mutant in _candidates(options)
        if options.only in f"{mutant.promise} {mutant}"
        and (mutant.simulated or not options.simulation_alone)
        and (mutant.promise or not options.promises)
    ]
    if wrong := faults(mutants):
        print(*wrong, sep="\n")
        return 1
    if options.check and options.table == "*" and (wrong := broken_promises(load(), proofs())):
        print(*wrong, sep="\n")
        return 1
    if options.check:
        print(f"mutants: {len(mutants)} can be applied")
        return 0
    results = []
    for result in run(
        mutants,
        seeds=options.seeds,
        processes=options.processes,
        with_tests=not options.simulation_alone,
    ):
        results.append(result)
        print(f"{result.killer:<10} {result.seconds:6.1f} s  {result.mutant}", flush=True)
    return summary(results, seeds=options.seeds)


def summary(results: Sequence[Result], *, seeds: int) -> int:
    """Print what came out of it; the answer is the exit status."""
    killed = Counter(each.killer for each in results)
    simulated = sum(each.mutant.simulated for each in results)
    share = killed["simulation"] / simulated if simulated else 1.0
    print(
        f"{len(results)} mutants, {seeds} seeds: the simulation killed {killed['simulation']} of"
        f" the {simulated} that it runs ({share:.1%}), tests killed {killed['tests']} more,"
        f" {killed['nothing']} survived"
    )
    for each in results:
        if each.killer == "nothing":
            print(f"survived: {each.mutant}")
    return 1 if killed["nothing"] or share < SHARE else 0


def _candidates(options: argparse.Namespace) -> list[Mutant]:
    if options.generate:
        return generate(options.generate, options.function, tests=tuple(options.tests))
    return load(options.table)


if __name__ == "__main__":
    sys.exit(main())
