"""`--rerun-failed`: at the end of a run, each test that failed runs once more, alone.

A test that passes then is unsteady: the run prints its name and why it failed, counts it as
unsteady in its closing line, and does not fail for it. A test that does not pass then has failed.
Nothing runs once more where more than `MOST_RERUN` failed, or where the run ended before all tests
had run: then no second run could say that the first one was right.

As a program, this is the second run of the tests of one file:

    python tests/outcomes/rerun_failed.py OUTCOMES [--timeout=SECONDS] NODE_ID...
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

MOST_RERUN: Final = 20
"""Tests. More than these fail because something is broken."""
UNSTEADY: Final = "unsteady"


class FailedRerun:
    """Plugin of the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ended: set[str] = set()
        self._unsteady: dict[str, list[Any]] = {}
        """The reports of what failed at first, by test."""

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.getplugin("terminalreporter")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ended.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        failed = list(dict.fromkeys(report.nodeid for report in self._failures()))
        if failed and self._may_rerun(failed, session.testscollected):
            self._count_as_unsteady(set(failed) & self._passing(failed))
            session.testsfailed = len(self._failures())
        return result

    def pytest_terminal_summary(self) -> None:
        if not self._unsteady:
            return
        self._terminal.section("UNSTEADY: failed at first, passed alone")
        for reports in self._unsteady.values():
            for report in reports:
                self._terminal.write_sep("_", report.nodeid)
                self._terminal.write_line(report.longreprtext)
                for title, text in report.sections:
                    self._terminal.write_sep("-", title)
                    self._terminal.write_line(text)
        for nodeid, reports in self._unsteady.items():
            self._terminal.write_line(f"{UNSTEADY}: {nodeid}: {_reason(reports[0])}", yellow=True)

    def _failures(self) -> list[Any]:
        """The reports of tests and of files that failed, at any of their steps."""
        return [*self._terminal.stats.get("failed", ()), *self._terminal.stats.get("error", ())]

    def _may_rerun(self, failed: Sequence[str], collected: int) -> bool:
        self._terminal.ensure_newline()
        if len(failed) > MOST_RERUN:
            self._terminal.write_line(f"{len(failed)} failed: too many to run once more")
        elif len(self._ended) < collected:
            self._terminal.write_line("nothing runs once more: not all tests have run")
        else:
            return True
        return False

    def _passing(self, failed: Iterable[str]) -> set[str]:
        """Which of them pass when they run alone: the tests of a file in a process of their own."""
        passing: set[str] = set()
        for path, nodeids in groupby(sorted(failed), lambda nodeid: nodeid.partition("::")[0]):
            self._terminal.write_line(f"once more, alone: {path}")
            passing |= self._passing_of(list(nodeids))
        return passing

    def _passing_of(self, nodeids: list[str]) -> set[str]:
        with TemporaryDirectory() as folder:
            outcomes = Path(folder) / "outcomes"
            outcomes.touch()
            arguments = [str(outcomes), *self._options(), *nodeids]
            self._run([sys.executable, str(Path(__file__).resolve()), *arguments])
            ended = [json.loads(line) for line in outcomes.read_text("utf-8").splitlines()]
        return {nodeid for nodeid in nodeids if _passes(nodeid, ended)}

    def _options(self) -> list[str]:
        timeout = self._config.getoption("timeout", None)
        return [] if timeout is None else [f"--timeout={timeout}"]

    def _run(self, command: list[str]) -> None:
        """Show what it prints while it runs."""
        with subprocess.Popen(
            command,
            cwd=self._config.rootpath,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                self._terminal.write(line)

    def _count_as_unsteady(self, nodeids: set[str]) -> None:
        stats = self._terminal.stats
        for report in self._failures():
            if report.nodeid in nodeids:
                self._unsteady.setdefault(report.nodeid, []).append(report)
        for outcome in ("failed", "error", "passed"):
            kept = [each for each in stats.get(outcome, ()) if each.nodeid not in nodeids]
            stats.pop(outcome, None)
            stats |= {outcome: kept} if kept else {}
        if self._unsteady:
            stats[UNSTEADY] = [reports[0] for reports in self._unsteady.values()]


class OutcomeFile:
    """Plugin of a second run: writes what came of each test, as the test ends, so that a crash
    takes none of it.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([report.nodeid, report.outcome]) + "\n")


def _passes(nodeid: str, ended: Iterable[tuple[str, str]]) -> bool:
    """`nodeid`: a test, or a file that could not be collected."""
    outcomes = {
        outcome for each, outcome in ended if each == nodeid or each.startswith(f"{nodeid}::")
    }
    return outcomes == {"passed"}


def _reason(report: Any) -> str:
    """The first line of what the test failed by."""
    crash = getattr(report.longrepr, "reprcrash", None)
    said = crash.message if crash else str(report.longrepr)
    return said.strip().partition("\n")[0]


def main(outcomes: str, *arguments: str) -> int:
    sys.path[0] = str(Path.cwd())  # as for `python -m pytest`
    quietly = ["-qq", "--no-header", "-p", "no:cacheprovider"]
    return pytest.main([*quietly, *arguments], plugins=[OutcomeFile(outcomes)])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
