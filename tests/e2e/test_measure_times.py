"""`tandem measure-times` against a real stack whose times are known: the sim engine's settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stacks import SIM_READY_SECONDS

from tandem.cli import main, options
from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack
from tandem_tools.trace_replay import times

ENGINE = ("prefill_base_ms=20", "prefill_ms_per_token=0.5", "step_ms=20", "step_ms_per_sequence=5")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    allowed = ("--allow-reports",)
    asked = StackOptions(
        model_path=options.model_path(None),
        engine="sim",
        engine_options=ENGINE,
        flags={"frontend": allowed, "router": allowed},
    )
    with Stack(asked, run_dir=tmp_path / "run") as running:
        running.wait_ready(timeout_seconds=SIM_READY_SECONDS)
        yield running


@pytest.mark.promise("S5-364")
def test_the_table_is_what_the_engine_was_told_and_a_little_more(
    stack: Stack, tmp_path: Path
) -> None:
    path = tmp_path / "times.yaml"
    asked = ("--prompt-tokens", "1", "400", "--sequences", "1", "4", "--to", str(path))
    assert main(["measure-times", "--url", stack.url, *asked]) == 0
    table = times.read(path)
    (few, short), (many, long) = table.prefill_ms
    assert few < 50 < 400 <= many < 500
    # Nothing takes less than what is slept, and a busy machine adds to it.
    assert 20 + 0.5 * few <= short < 3 * (20 + 0.5 * few)
    assert 20 + 0.5 * many <= long < 1.5 * (20 + 0.5 * many)
    (one, alone), (four, together) = table.step_ms
    assert (one, four) == (1, 4)
    assert 25 * 0.98 <= alone < 38
    assert 40 * 0.9 <= together < 60, "those that came first and last ran with fewer"
    assert all(0 < took < 100 for _, took in table.transfer_ms)
    assert 0 <= table.overhead_ms < 100
