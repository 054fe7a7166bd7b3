"""A process that has imported SGLang, and runs scripts in forks of itself. A line of its input has
a script, its arguments and a folder for what it prints; a line of its output has its exit status.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback

import sglang.srt.managers.scheduler  # noqa: F401 - what the scripts have in common


def run(script: str, arguments: list[str], folder: str) -> int:
    """As Python would. Returns the exit status."""
    for descriptor, name in enumerate(("out", "err"), start=1):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:  # noqa: BLE001 - whatever it is, its test shows it
        traceback.print_exc()
        return 1
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    ends = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        script, *arguments, folder = json.loads(line)
        if not (fork := os.fork()):
            os._exit(run(script, arguments, folder))
        ends.write(f"{os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])}\n")
        ends.flush()
