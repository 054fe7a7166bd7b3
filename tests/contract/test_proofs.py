"""A started SGLang engine proves what units are for, and does without those that it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 400
pytestmark = [
    pytest.mark.sglang,
    pytest.mark.long,
    pytest.mark.promise("S5-809"),
    pytest.mark.timeout(SECONDS + 20),
]


def _start(model_path: Path, role: str, *processor: str) -> list[object]:
    """The units that are lacking, with why, and the parameters and processors that are refused."""
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    program = subprocess.run(
        [sys.executable, HERE / "proved_start.py", str(model_path), role, *processor],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    found: list[object] = json.loads(program.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("role", ["prefill", "decode", "aggregated"])
def test_all_units_are_proved_in_either_phase(model_path: Path, role: str) -> None:
    assert _start(model_path, role) == [{}, [], []]


@pytest.mark.parametrize("role", ["decode", "aggregated"])
def test_what_comes_out_otherwise_is_found_and_refused(model_path: Path, role: str) -> None:
    lacks, sampling, processors = _start(model_path, role, "proof_faults:Loads")
    assert set(lacks) == {"seeds", "penalties", "forms"}  # type: ignore[call-overload]
    penalties = ["frequency_penalty", "presence_penalty", "repetition_penalty"]
    assert sampling == [*penalties, "seed"]
    assert "json_schema" in processors  # type: ignore[operator]
