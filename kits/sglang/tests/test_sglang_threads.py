"""A thread of SGLang's that dies is reported to the parent; one of user code is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

PARENT = """
import signal, subprocess, sys
told = []
signal.signal(signal.SIGQUIT, lambda *_: told.append(1))
ended = subprocess.run([sys.executable, "-c", sys.argv[1]])
assert ended.returncode == 0, "its own process ends it"
sys.exit(len(told))
"""
CHILD = """
import threading
from tandem_sglang import threads
threads.report_deaths()
module = {{"__name__": {module!r}}}
exec("def run(act): act()", module)
def act():
    {act}
thread = threading.Thread(target=module["run"], args=(act,))
thread.start()
thread.join()
"""


@pytest.mark.promise("S5-207")
@pytest.mark.parametrize(
    ("module", "act", "told"),
    [
        ("sglang.srt.disaggregation.nixl.conn", "raise ValueError('stray')", True),
        ("sglang.srt.disaggregation.nixl.conn", "raise SystemExit", False),
        ("sglanguage", "raise ValueError", False),
        ("my_processors", "raise ValueError", False),
    ],
)
def test_a_thread_of_sglang_that_raises_is_reported(module: str, act: str, told: bool) -> None:
    child = CHILD.format(module=module, act=act)
    ended = subprocess.run(
        [sys.executable, "-c", PARENT, child], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == told, ended.stderr
    assert ("Traceback" in ended.stderr) == act.startswith("raise V"), "it is printed"
