"""What SGLang's own events say of its prefix cache is what its requests did to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("prefix_events.py")


@pytest.mark.sglang
@pytest.mark.timeout(400)
@pytest.mark.promise("S5-254")
def test_blocks_enter_and_leave_the_log_as_sglang_s_cache_keeps_them(model_path: Path) -> None:
    """A prompt, the same with a salt, and then others, for which both must go."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(model_path)],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[10, 0], [10, 10], [0, 0]]
