"""Files of cases of the router's core are collected as tests: tests/unit/router_trace.py."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import router_trace


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return TraceFile.from_parent(parent, path=file_path) if file_path.suffix == ".txt" else None


class TraceFile(pytest.File):
    """`--write-traces` writes the file anew before the cases are read."""

    def collect(self) -> Iterator[pytest.Item]:
        if self.config.getoption("write_traces"):
            router_trace.write(self.path)
        for case in router_trace.read(self.path)[1]:
            yield TraceCase.from_parent(self, name=case.title, case=case)


class TraceCase(pytest.Item):
    """A case, which fails where the core answers otherwise than its file says."""

    def __init__(self, *, case: router_trace.Case, **given: Any) -> None:
        super().__init__(**given)
        self.case = case
        if case.promises:
            self.add_marker(pytest.mark.promise(*case.promises))

    def runtest(self) -> None:
        changed = difflib.ndiff(self.case.lines, self.case.played())
        if found := [each for each in changed if not each.startswith((" ", "?"))]:
            raise OtherwiseError("\n".join(found))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if excinfo.errisinstance(OtherwiseError):
            return f"{excinfo.value}\n(-: what the file says, +: what the core answers)"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.line - 1, self.case.title


class OtherwiseError(AssertionError):
    """The core answers otherwise."""
