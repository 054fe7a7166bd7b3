"""Fuzz every edge: `python tests/fuzz/run.py --minutes 30 --seed 7`.

A run goes on where the last one of its seed has ended, until each target has had its inputs. At the
end a table says what came of them; the exit status is 1 where something was found. Each finding is
printed with the command that gives its input again.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    # Run from a checkout without an installation too.
    sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

from fuzzing import child, described, watch  # noqa: E402 - the path comes first
from fuzzing.found import Findings  # noqa: E402
from fuzzing.trial import Trial  # noqa: E402

FOLDER = HERE.parents[1] / "build" / "fuzz"


def main() -> int:
    options = _options()
    if options.child:
        child.run(
            options.child,
            options.folder,
            seed=options.seed,
            until=options.inputs,
            seconds=options.seconds,
            guided=options.guided,
        )
        return 0
    if options.replay:
        return _replay(options.targets[0], options.replay, options.folder)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    rows = []
    chosen = [each for each in child.targets() if each.name in (options.targets or [each.name])]
    guided = options.guided and importlib.util.find_spec("atheris") is not None
    for target in chosen:
        plan = watch.Plan(
            name=target.name,
            folder=options.folder / target.name,
            seed=options.seed,
            until=min(options.inputs or target.goal, target.goal),
            seconds=options.minutes * 60 / len(chosen),
            guided=guided,
        )
        progress = watch.carry_out(plan)
        rows.append((target.name, progress, Findings(plan.folder, target.name)))
        print(watch.table(rows[-1:]).splitlines()[-1], flush=True)
    print(watch.table(rows))
    clean = not any(len(findings) for _, _, findings in rows)
    if not options.targets or described.NAME in options.targets:
        examples = min(options.inputs or described.EXAMPLES, described.EXAMPLES)
        clean &= described.hold(seed=options.seed, examples=examples)
    return 0 if clean else 1


def _replay(name: str, path: Path, folder: Path) -> int:
    findings = Findings(folder / "replayed" / path.stem, name)
    trial = Trial(child.find(name), findings)
    trial.give(path.read_bytes())
    trial.close()
    return 1 if len(findings) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", help="which; all where none is named")
    parser.add_argument("--seed", type=int, default=1, help="another one makes other inputs")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for all targets together")
    parser.add_argument("--inputs", type=int, default=0, help="at most, of each target")
    parser.add_argument("--guided", action="store_true", help="by coverage, with Atheris")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where a run is kept")
    parser.add_argument("--replay", type=Path, help="give one input again")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=math.inf, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
