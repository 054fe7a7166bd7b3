"""A copy of the tree in which one file at a time is broken. The working tree is never touched."""

from __future__ import annotations

import compileall
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from product_packages import PACKAGES, import_path

from mutants.table import ROOT, Mutant

COPIED = {
    *(each.relative_to(ROOT).parts[0] for each in PACKAGES.values()),
    *("tests", "helm", "scripts", "examples"),
}
"""What is not is a link to the working tree, so no mutant may be there."""
_LEFT_OUT = {".git", ".venv"}
_TESTS = re.compile(r"/test_\w+[.]py$")
"""Files that pytest compiles in its own way."""
_MEMORY = 8 << 30
"""Bytes that a mutant may ask for: one that never stops is to end itself, not the machine."""

_CLOCK_SHARE = 10
"""A command may wait for processors by the clock so many times as long as it may compute."""


class Overlay:
    """The copy, and commands that run in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        being_written = shutil.ignore_patterns("*.pyc.*")
        for entry in ROOT.iterdir():
            if entry.name in COPIED:
                # With what Python has compiled of the tree: a copied source is as old as its own.
                shutil.copytree(entry, folder / entry.name, ignore=being_written)
            elif entry.name not in _LEFT_OUT:
                (folder / entry.name).symlink_to(entry)
        compileall.compile_dir(folder, quiet=2, workers=1, rx=_TESTS)

    @contextmanager
    def broken_by(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.path
        source, times = path.read_text(), path.stat()
        try:
            path.write_text(mutant.applied(source))
            # Python compares the second and the size with what it compiled before.
            os.utime(path, (times.st_atime, times.st_mtime + 100))
            yield
        finally:
            path.write_text(source)
            os.utime(path, (times.st_atime, times.st_mtime))

    def passes(self, command: Sequence[str], *, seconds: int) -> bool:
        """Whether the command ends well within `seconds` of CPU time: one that never stops is
        noticed, and a machine that is busy is not.
        """
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=self.root,
            env={
                **os.environ,
                "PYTHONPATH": import_path(self.root),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=partial(_bound, seconds),
        )
        try:
            return process.wait(seconds * _CLOCK_SHARE) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _kill_group(process)

    def simulation_passes(self, seeds: int) -> bool:
        command = ["tests/simulation/run.py", f"--seeds={seeds}", "--processes=1"]
        return self.passes([*command, "--stop-at-first"], seconds=30 + seeds)

    def tests_pass(self, tests: Sequence[str]) -> bool:
        command = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=60", *tests]
        return self.passes(command, seconds=300)


def _bound(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
