"""The table of deliberate bugs: what each changes, and which tests belong to its file.

Every `*.toml` of tests/mutation holds a part of it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).resolve().parents[1]
ROOT = TABLES.parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A deliberate bug. `before` is exactly once in the file of `path`."""

    path: str
    breaks: str
    before: str
    after: str
    tests: tuple[str, ...]
    """The unit tests that belong to the file."""
    simulated: bool = True
    """Whether the simulation runs the code at all."""
    short: bool = False
    """Whether it is one of the fixed few that every run of the tests tries."""
    promise: str = ""
    """The promise that it breaks: one of `tests`, which are marked with it, is to notice. Each of
    them may be one case of a test, "file::function[case]".
    """

    def __str__(self) -> str:
        return f"{self.path}: {self.breaks}"

    def applied(self, source: str) -> str:
        return source.replace(self.before, self.after)


def load(table: str = "*") -> list[Mutant]:
    """All mutants of a table, or of every one, by part and file."""
    return [
        Mutant(
            path=file["path"],
            tests=tuple(mutant.pop("tests", None) or file["tests"]),
            **{"simulated": file.get("simulated", True), **mutant},
        )
        for part in sorted(TABLES.glob(f"{table}.toml"))
        for file in tomllib.loads(part.read_text())["file"]
        for mutant in file["mutant"]
    ]


def faults(mutants: list[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the table as the tree is now."""
    found = []
    for mutant in mutants:
        source = (root / mutant.path).read_text()
        if (times := source.count(mutant.before)) != 1:
            found.append(f"{mutant}: its `before` is there {times} times, not once")
            continue
        if not mutant.path.endswith(".py"):
            continue
        try:
            compile(mutant.applied(source), mutant.path, "exec")
        except SyntaxError as error:
            found.append(f"{mutant}: with it the file is no Python ({error})")
        found += [
            f"{mutant}: there is no {test}"
            for test in mutant.tests
            if not (root / test.partition("::")[0]).exists()
        ]
    names = [str(mutant) for mutant in mutants]
    found += [f"{name}: is there twice" for name in {*names} if names.count(name) > 1]
    return found
