"""The table of deliberate bugs: what each changes, and which tests belong to its file.

Each file of tests/mutation/rules holds a part of it: bugs that break a rule worth saying.
tests/mutation/files.toml says of each file of the product which tests belong to it.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mutants.change import changed

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]


class Tested(NamedTuple):
    """What notices bugs of one file."""

    tests: tuple[str, ...] = ()
    """The unit tests that belong to the file."""
    simulated: bool = False
    """Whether the simulation runs the code at all."""


@functools.cache
def files() -> dict[str, Tested]:
    """By the path of the file."""
    found = tomllib.loads((HERE / "files.toml").read_text())
    return {
        path: Tested(tuple(given["tests"]), given.get("simulated", False))
        for path, given in found.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A deliberate bug: `after` in place of `before` in a function, as `changed` has it."""

    path: str
    breaks: str
    before: str
    after: str
    function: str = ""
    tests: tuple[str, ...]
    simulated: bool = True
    short: bool = False
    """Whether it is one of the fixed few that every run of the tests tries."""
    promise: str = ""
    """The promise that it breaks: one of `tests`, which are marked with it, is to notice. Each of
    them may be one case of a test, "file::function[case]".
    """

    def __str__(self) -> str:
        return f"{self.path}: {self.breaks}"

    def applied(self, source: str) -> str:
        """The file's text with the bug. Raises LookupError and SyntaxError."""
        return changed(source, self.function, self.before, self.after)


def load(table: str = "*") -> list[Mutant]:
    """All mutants of a part of the table, or of every one, by part and file."""
    return [
        _mutant(**given)
        for part in sorted((HERE / "rules").glob(f"{table}.toml"))
        for given in tomllib.loads(part.read_text())["mutant"]
    ]


def _mutant(path: str, tests: list[str] | None = None, **given: Any) -> Mutant:
    known = files()[path]
    return Mutant(
        path=path,
        tests=known.tests if tests is None else tuple(tests),
        **{"simulated": known.simulated, **given},
    )


def faults(mutants: list[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the table as the tree is now."""
    found = []
    for mutant in mutants:
        try:
            compile(mutant.applied((root / mutant.path).read_text()), mutant.path, "exec")
        except LookupError as error:
            found.append(f"{mutant}: {error.args[0]}")
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
