"""Files of cases of a worker's legs are collected as tests: tests/unit/worker/worker_trace.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_files import TraceFile
from worker_trace import Trace


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != ".txt":
        return None
    return TraceFile.from_parent(parent, path=file_path, machine=Trace)
