"""Compares what a token costs now with what it cost at another commit, in alternating runs.

Each round runs `token_cost.py` three times: at the old commit, in this checkout, and at the old
commit again, with the first two in changing order. The two old runs of a round show how much the
machine alone moves a figure. A round of which a run fails is left out, and said. A row is dearer
where the median of its ratios is above 1 by more than 3 % and by more than the largest difference
that the old commit showed against itself.

    python benchmarks/against.py 2b8592d --streams 64 --streams 256
    python benchmarks/against.py 2b8592d --pairs 5 --json out.json      # all rows, about an hour
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.append(str(Path(__file__).resolve().parents[1] / "scripts"))

import machine
from product_packages import import_path

ROOT = Path(__file__).resolve().parent.parent

RUN_SECONDS = 900
"""After so long a run is given up, and its round left out."""
ALLOWED = 0.03
"""A row may be dearer by so much, as a share, before it counts."""


@dataclass(frozen=True)
class Comparison:
    """One row over all rounds: each tuple holds a figure for every round."""

    name: str
    old: tuple[float, ...]
    new: tuple[float, ...]
    old_again: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of new to old; old is the mean of a round's two runs."""
        rounds = zip(self.new, self.old, self.old_again, strict=True)
        return median(new / ((first + again) / 2) for new, first, again in rounds)

    @property
    def spread(self) -> float:
        """The largest difference of the old commit against itself, as a share."""
        return max(abs(a / b - 1) for a, b in zip(self.old, self.old_again, strict=True))

    @property
    def dearer(self) -> bool:
        return self.ratio - 1 > max(ALLOWED, self.spread)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A temporary work tree of a commit."""
    with TemporaryDirectory() as parent:
        tree = Path(parent) / "old"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run((*git, "add", "--quiet", "--detach", str(tree), commit), check=True)
        try:
            yield tree
        finally:
            subprocess.run((*git, "remove", "--force", str(tree)), check=True)


def run(tree: Path, streams: Sequence[int]) -> dict[str, float]:
    """The costs that one run of a tree's own token_cost.py measured, by the name of the row.

    Raises subprocess.SubprocessError where it fails, or takes too long.
    """
    command = [sys.executable, str(tree / "benchmarks" / "token_cost.py")]
    for count in streams:
        command += ["--streams", str(count)]
    with TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        subprocess.run(
            [*command, "--json", str(out)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": import_path(tree)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=RUN_SECONDS,
            check=True,
        )
        report = json.loads(out.read_text())
    return costs(report)


def costs(report: Mapping[str, object]) -> dict[str, float]:
    """The rows of a report where less is better and that are CPU time or memory."""
    rows: list[dict[str, float]] = report["rows"]  # type: ignore[assignment]
    found = {f"us a token, {row['streams']} streams": row["us_per_token"] for row in rows}
    if "request" in report:
        request: dict[str, float] = report["request"]  # type: ignore[assignment]
        saturation: dict[str, float] = report["saturation"]  # type: ignore[assignment]
        idle: float = report["idle_stream_kib"]  # type: ignore[assignment]
        found["ms a two-token request"] = request["ms_per_request"]
        found["us a token, saturated"] = saturation["us_per_token"]
        found["KiB of an idle stream"] = idle
    return found


def compare(commit: str, *, pairs: int, streams: Sequence[int]) -> list[Comparison]:
    kept: dict[str, list[dict[str, float]]] = {"old": [], "new": [], "again": []}
    with checkout(commit) as tree:
        for number in range(pairs):
            order = ("old", "new", "again") if number % 2 == 0 else ("new", "old", "again")
            try:
                found = {which: run(ROOT if which == "new" else tree, streams) for which in order}
            except subprocess.SubprocessError as error:
                print(f"  round {number + 1} is left out: {why(error)}", file=sys.stderr)
                continue
            for which, figures in found.items():
                kept[which].append(figures)
            print(f"  round {number + 1} of {pairs} done", file=sys.stderr)
    if not kept["new"]:
        raise SystemExit("no round could be measured")
    return [
        Comparison(name, *(tuple(each[name] for each in kept[which]) for which in kept))
        for name in kept["old"][0]
    ]


def why(error: subprocess.SubprocessError) -> str:
    """With the end of what the run that failed has said."""
    said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
    return "\n".join([str(error), *(said or "").splitlines()[-10:]])


def table(comparisons: Sequence[Comparison]) -> str:
    lines = [f"{'':<26} {'old':>8} {'new':>8} {'new/old':>8} {'old/old':>8}"]
    for row in comparisons:
        old = median((*row.old, *row.old_again))
        verdict = "  DEARER" if row.dearer else ""
        lines.append(
            f"{row.name:<26} {old:8.2f} {median(row.new):8.2f} {row.ratio:8.3f}"
            f" {'±':>3}{row.spread:5.1%}{verdict}"
        )
    return "\n".join(lines)


def main() -> int:
    """Exit status 1 where a row has become dearer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", help="commit to compare with")
    parser.add_argument("--pairs", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--streams", type=int, action="append", help="only these rows (repeatable)")
    parser.add_argument("--json", type=Path, help="write every figure here as well")
    options = parser.parse_args()
    found = compare(options.commit, pairs=options.pairs, streams=options.streams or ())
    rounds = len(found[0].new)
    print(f"machine: {machine.describe()}\nold: {options.commit}, {rounds} rounds\n")
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps([vars(each) for each in found], indent=2) + "\n")
    return int(any(each.dearer for each in found))


if __name__ == "__main__":
    sys.exit(main())
