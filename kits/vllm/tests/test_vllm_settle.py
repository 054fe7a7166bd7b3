"""What vLLM's processes do when they begin: they end with their worker, and leave Ctrl-C to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BODY = """
import os, signal, subprocess, sys
from tandem.usercode.deadline import WATCH
from tandem_vllm import settle
if len(sys.argv) == 1:
    settle.announce(os.getpid())
    settle.register()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    subprocess.Popen([sys.executable, __file__, "engine"]).wait()
else:
    settle.register()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert WATCH.next_look == float("inf")  # a late processor is interrupted
    if sys.argv[1] == "engine":
        subprocess.Popen([sys.executable, __file__, "rank"])
    else:
        print("settled", flush=True)
    signal.pause()
"""


@pytest.mark.promise("S5-731")
def test_a_worker_that_is_killed_leaves_no_process_of_vllm(tmp_path: Path) -> None:
    script = tmp_path / "settle.py"
    script.write_text(BODY)
    worker = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "settled\n"
    worker.kill()
    worker.wait()
    assert worker.stdout.read() == ""  # the others, which held it open too, have ended
    worker.stdout.close()
