"""Runs scripts on SGLang's own classes: each in a process of its own, because a script changes the
classes, and all in forks of one process that has imported SGLang, because the import takes long.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent


def answers(script: Path, *arguments: str) -> dict[str, Any]:
    """The answers of a script's checks, by name."""
    forks = _forks()
    assert forks.stdin is not None
    assert forks.stdout is not None
    with TemporaryDirectory() as folder:
        try:
            forks.stdin.write(json.dumps([str(script), *arguments, folder]) + "\n")
            forks.stdin.flush()
            status = forks.stdout.readline()
        except BaseException:  # a test's time limit too: its answer is not to be the next script's
            _forks.cache_clear()
            _end(forks)
            raise
        assert status, "the process that has imported SGLang has ended"
        printed, errors = ((Path(folder) / name).read_text() for name in ("out", "err"))
    assert status == "0\n", errors[-3000:]
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@cache
def _forks() -> subprocess.Popen[str]:
    """The process that forks; its pipes end it with this process."""
    paths = [str(HERE.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(HERE / "sglang_forks.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SGLANG_USE_CPU_ENGINE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end, started)
    return started


def _end(forks: subprocess.Popen[str]) -> None:
    """Kill the process and the script that it runs, where they have not ended."""
    if forks.poll() is None:
        os.killpg(forks.pid, signal.SIGKILL)
        forks.wait()
    for pipe in (forks.stdin, forks.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
