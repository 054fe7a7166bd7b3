"""Say which measured tables of the pages are older than the code that they measured.

A page names, in a line by itself above its tables, what it measured:

    Measured at commit `2894f4ef` of `router tandem/wire`.

Where anything below these paths has changed since, the line says so:

    Measured at commit `2894f4ef`, before later changes of `router tandem/wire`.

    python scripts/check_measured.py          # list them; exit 1 where a line says otherwise
    python scripts/check_measured.py --write  # make the lines say it
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LINE = re.compile(
    r"^Measured at commit `([0-9a-f]{7,40})`(,\s+before\s+later\s+changes)?\s+of\s+`([^`]+)`\.$",
    re.MULTILINE,
)
_COLUMNS = 100


class Measured(NamedTuple):
    """A line that says which commit a table measured."""

    commit: str
    marked: bool
    """Whether the page says that the code has changed since."""
    paths: tuple[str, ...]

    def line(self, *, stale: bool) -> str:
        mark = ", before later changes" if stale else ""
        line = f"Measured at commit `{self.commit}`{mark} of `{' '.join(self.paths)}`."
        return textwrap.fill(line, _COLUMNS, break_long_words=False, break_on_hyphens=False)


def pages(root: Path) -> list[Path]:
    """The pages of docs/ and of the kits."""
    return sorted([*root.glob("docs/**/*.md"), *root.glob("kits/**/*.md")])


def lines(text: str) -> Iterator[Measured]:
    return map(_measured, LINE.finditer(text))


def _measured(found: re.Match[str]) -> Measured:
    return Measured(found[1], bool(found[2]), tuple(found[3].split()))


def changed(measured: Measured, *, root: Path) -> bool | None:
    """Whether its code is another now; None: the history here does not know the commit."""
    known = _git(root, "cat-file", "-e", f"{measured.commit}^{{commit}}")
    if known.returncode != 0:
        return None
    found = _git(root, "diff", "--quiet", measured.commit, "--", *measured.paths)
    return found.returncode != 0


def main(*, write: bool, root: Path = ROOT) -> int:
    wrong = 0
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(root)
        right = LINE.sub(partial(_right, page=name, root=root), text)
        wrong += right != text
        if write:
            page.write_text(right, encoding="utf-8")
    if wrong and not write:
        print(f"{wrong} pages do not say so: python scripts/check_measured.py --write")
    return 0 if write or not wrong else 1


def _right(found: re.Match[str], page: Path, root: Path) -> str:
    """The line as it should be; a page that is older than its code is printed."""
    measured = _measured(found)
    stale = changed(measured, root=root)
    if stale is None:
        print(f"{page}: {measured.commit} is not in the history here")
        return found[0]
    if stale:
        print(f"{page}: older than its code: {' '.join(measured.paths)}")
    return found[0] if stale == measured.marked else measured.line(stale=stale)


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main(write="--write" in sys.argv[1:]))
