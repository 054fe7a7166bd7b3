"""What `make` says of itself, and that no file can stand for a target."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = re.findall(r"^([a-z-]+):", TEXT, re.MULTILINE)


def test_every_target_is_phony() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", TEXT, re.MULTILINE)
    assert sorted(phony.split()) == sorted(TARGETS)


def test_help_lists_every_target_in_one_column() -> None:
    printed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = printed.stdout.splitlines()[1:]
    assert [line.split()[1] for line in lines] == TARGETS
    starts = {re.match(r"  make \S+ +", line).end() for line in lines}  # type: ignore[union-attr]
    assert len(starts) == 1
