"""Asks SGLang for its arguments, in one process beside this one: importing it takes long."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
ANSWER = "answer: "


def ask(given: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`names` of all arguments, and `resolved`: what SGLang makes of each of `given` on an H100,
    with what is said of "unequal" ranks of its model, or the error that it raises, as text.
    """
    questions, answers = _side()
    questions.write(json.dumps(given) + "\n")
    questions.flush()
    for line in answers:
        if line.startswith(ANSWER):
            told: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
            return told
    raise AssertionError("the process that knows SGLang has ended")


@cache
def _side() -> tuple[IO[str], IO[str]]:
    """The process, which ends with this one, by its pipes."""
    root = str(HERE.parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "sglang_arguments_side.py")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "SGLANG_USE_CPU_ENGINE": "1",
            "HF_HUB_OFFLINE": "1",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdin is not None
    assert started.stdout is not None
    atexit.register(started.communicate)
    return started.stdin, started.stdout
