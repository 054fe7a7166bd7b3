"""Asks SGLang for its arguments, in one process beside this one: importing it takes long."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def ask(given: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`names` of all arguments, and `resolved`: what SGLang makes of each of `given` on an H100,
    with what is said of "unequal" ranks of its model, or the error that it raises, as text.
    """
    root = str(HERE.parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "sglang_arguments_side.py")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
        },
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    told: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return told
