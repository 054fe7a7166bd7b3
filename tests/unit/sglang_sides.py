"""What the scripts say that run on SGLang's own classes: each in a process of its own, because it
changes them, and all in forks of one that has imported them, because that takes long.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent


def answers(script: Path, *arguments: str) -> dict[str, Any]:
    """Of each of its checks, by name."""
    forks = _forks()
    assert forks.stdin is not None
    assert forks.stdout is not None
    with TemporaryDirectory() as folder:
        forks.stdin.write(json.dumps([str(script), *arguments, folder]) + "\n")
        forks.stdin.flush()
        status = forks.stdout.readline()
        printed, errors = ((Path(folder) / name).read_text() for name in ("out", "err"))
    assert status == "0\n", errors[-3000:]
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@cache
def _forks() -> subprocess.Popen[str]:
    """The process, which ends with this one, by its pipes."""
    paths = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "sglang_forks.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SGLANG_USE_CPU_ENGINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(started.communicate)
    return started
