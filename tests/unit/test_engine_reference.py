"""The reference run, over the sim engine: what a pair of workers is compared with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(content: str, model_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "tandem.engine.reference"),
            *("--engine", "sim", "--model-path", str(model_path)),
            *more,
        ],
        input=content,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_same_requests_give_the_same_tokens_of_the_asked_length(model_path: Path) -> None:
    requests = json.dumps(
        [{"token_ids": [5, 6, 7], "max_tokens": 6}, {"token_ids": [9], "max_tokens": 2}] * 2
    )
    finished = run(requests, model_path)
    assert finished.returncode == 0, finished.stderr
    outputs = json.loads(finished.stdout)
    assert [len(output) for output in outputs] == [6, 2, 6, 2]
    assert outputs[:2] == outputs[2:]


def test_it_takes_the_engine_options_of_the_workers(model_path: Path) -> None:
    asked = json.dumps([{"token_ids": [5], "max_tokens": 1}])
    assert run(asked, model_path, "--engine-options=page_size=16,step_ms=1").returncode == 0
    refused = run(asked, model_path, "--engine-options=no_such=1")
    assert (refused.returncode, "no_such" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[{", "truncated"),
        ('[{"token_ids": [5]}]', "max_tokens"),
        ('[{"token_ids": [5], "max_tokens": 1, "seed": 3}]', "seed"),
        ('[{"token_ids": [], "max_tokens": 1}]', "prompt"),
    ],
)
def test_bad_input_ends_with_status_2_and_says_why(
    content: str, named: str, model_path: Path
) -> None:
    finished = run(content, model_path)
    assert finished.returncode == 2
    assert named in finished.stderr
    assert "Traceback" not in finished.stderr
