"""What keys took of real workers is all of the workers' time, while a worker dies."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.promise("S5-800", "S5-802")
def test_keys_and_idleness_are_all_of_the_workers_time_and_what_answers_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sums = importlib.import_module("cost_sums").run(seconds=8.0, kill_seconds=3.0)
    assert sums.answered
    assert len(sums.lives) >= 4
    for phase in ("prefill", "decode"):
        assert sums.share(phase) == pytest.approx(1, abs=0.01)
    for key in ("large", "late", "small"):
        told = sums.told[f"{key} prefill_seconds"]
        assert 0 < told <= sums.took("prefill", "key_seconds", key) * 1.2
