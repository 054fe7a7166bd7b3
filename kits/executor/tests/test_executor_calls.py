"""What a message of a router costs a program, in calls: a measure that load does not change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "executor_calls.py"
SECONDS = 120
MOST_OF_A_MESSAGE, MOST_OF_A_TOKEN = 40, 8


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_message_passes_few_functions_and_a_token_of_it_fewer(kind: str) -> None:
    """Eight of a token: the row, two of the backend, two of the core, its reading, and two that the
    program calls itself.
    """
    flags = ["--asyncio"] if kind == "asyncio" else []
    totals = []
    for streams in (8, 24):
        command = [sys.executable, str(BENCHMARK), "--streams", str(streams), *flags]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS
        )
        totals.append(float(done.stdout.splitlines()[-1].split()[0]))
    of_a_token = (totals[1] - totals[0]) / 16
    assert round(of_a_token, 1) <= MOST_OF_A_TOKEN
    assert totals[0] - 8 * of_a_token <= MOST_OF_A_MESSAGE
