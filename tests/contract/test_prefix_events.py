"""What SGLang's own events say of its prefix cache is what its requests did to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("prefix_events.py")
SUBSCRIBERS = Path(__file__).parents[1] / "unit" / "worker"


@pytest.mark.sglang
@pytest.mark.timeout(400)
@pytest.mark.promise("S5-254", "S5-787", "S5-788")
def test_blocks_enter_and_leave_the_log_as_sglang_s_cache_keeps_them(model_path: Path) -> None:
    """A prompt, the same with a salt, and then others, for which both must go; a subscriber to KV
    events that asks for what it missed holds the same.
    """
    paths = [str(SUBSCRIBERS), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(model_path)],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    told = [[10, 0, True], [10, 10, True], [0, 0, True]]
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == told
