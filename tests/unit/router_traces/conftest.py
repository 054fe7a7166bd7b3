"""Files of cases of the router's core are collected as tests: tests/unit/router_trace.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from router_trace import Trace
from trace_files import TraceFile


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != ".txt":
        return None
    return TraceFile.from_parent(parent, path=file_path, machine=Trace)
