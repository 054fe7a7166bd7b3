"""Runs scripts on SGLang's own classes, each in a process of its own: it changes the classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 200


def answers(script: Path, *arguments: str) -> dict[str, Any]:
    """The answers of a script's checks, by name."""
    paths = [str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
