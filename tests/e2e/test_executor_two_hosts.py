"""The example of a named callback over two hosts' worth of workers: two pairs, each worker at an
address of its own, behind one router.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from stacks import metric_sum

from tandem.cli.plan import StackOptions
from tandem.cli.stack import Stack

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ("prefill_worker-0", "prefill_worker-1", "decode_worker-0", "decode_worker-1")
REGISTERED = "--logits-processors=one_in=executor_callback:one_in"
PATH = os.pathsep.join((str(ROOT), str(ROOT / "examples")))


@pytest.fixture
def stack(model_path: Path, tmp_path: Path) -> Iterator[Stack]:
    options = StackOptions(
        model_path=model_path,
        engine="sim",
        engine_options=("step_ms=5",),
        prefill=2,
        decode=2,
        flags={
            "prefill_worker": (REGISTERED,),
            "decode_worker": (REGISTERED,),
            "router": ("--client-logits-processors=one_in",),
        },
    )
    with (
        mock.patch.dict("os.environ", {"PYTHONPATH": PATH}),
        Stack(options, run_dir=tmp_path) as running,
    ):
        running.wait_ready(timeout_seconds=60)
        yield running


def counted(stack: Stack, component: str, name: str) -> float:
    metrics = stack.components[component].launch.metrics
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as response:
        return metric_sum(response.read().decode(), name, {})


def wait_for_all(stack: Stack) -> None:
    """The router is ready as soon as it has tried each worker once."""
    deadline = time.monotonic() + 60
    while counted(stack, "router", "tandem_router_routable_workers") < len(WORKERS):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.promise("S2-071", "S2-092")
def test_a_callback_shapes_the_answers_of_both_pairs_and_no_other_answer(stack: Stack) -> None:
    wait_for_all(stack)
    command = [sys.executable, "examples/executor_callback.py", stack.components["router"].address]
    told = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": PATH}, capture_output=True,
        text=True, check=True, timeout=60,
    )  # fmt: skip
    assert told.stdout.splitlines() == [
        "32 of 32 answers are as the callback wants them,",
        "32 of 32 that did not name it are not",
    ]
    counts = {worker: counted(stack, worker, "tandem_worker_legs_total") for worker in WORKERS}
    assert min(counts.values()) > 0, counts
    assert sum(counts.values()) == 2 * 64
