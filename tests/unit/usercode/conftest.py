"""The watch, as a worker installs it."""

from __future__ import annotations

import pytest

from tandem.usercode.deadline import WATCH


@pytest.fixture
def watch() -> None:
    """Calls in the main thread are interrupted when they are overdue."""
    WATCH.install()
