"""Counts tests that did not run, by reason, at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest


def counted(skipped: Iterable[Any]) -> list[str]:
    """A line for each reason, the most frequent first. Takes pytest's reports."""
    reasons = Counter(_reason(report) for report in skipped)
    return [f"skipped: {count:>5} {reason}" for reason, count in reasons.most_common()]


def _reason(report: Any) -> str:
    """pytest gives the reason of a skipped test with a file and a line."""
    told = report.longrepr
    reason = told[2] if isinstance(told, tuple) else str(told)
    return reason.removeprefix("Skipped: ")


class SkipReasons:
    """Plugin of the process that reports."""

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.get_verbosity() < -1:
            return
        for line in counted(terminalreporter.stats.get("skipped", ())):
            terminalreporter.write_line(line)
