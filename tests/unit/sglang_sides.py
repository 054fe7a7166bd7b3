"""What the scripts say that run on SGLang's own classes, in one process beside this one, because
importing them takes long and changes the process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def answers(script: str) -> dict[str, Any]:
    """Of each of its checks, by name."""
    paths = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found
