"""What reading a body took is told to each step."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tandem_frontend.read_steps import ReadSteps


@pytest.fixture
def _timed() -> Iterator[None]:
    """As in a process that reads a body, which ends itself where it takes too much CPU time."""
    signal.setitimer(signal.ITIMER_PROF, 1000)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


@pytest.mark.promise("S5-655")
@pytest.mark.usefixtures("_timed")
def test_a_step_has_its_own_cpu_time_where_cpu_time_is_bounded() -> None:
    """Short ones too: the kernel's clock of the process moves each 4 ms there."""
    steps, numbers = ReadSteps(), range(30_000)
    for _ in range(20):
        sum(numbers)
        steps.end("render")
        time.sleep(0.001)
        steps.end("find")
    render, find = steps.done()
    assert render.cpu_seconds > 3 * find.cpu_seconds
