"""Notes for how long full collections of garbage keep a process, for sglang_steps.py: Python
imports this by itself where PYTHONPATH names its folder. Without GC_WATCH in the environment, a
file that all processes append to, it does nothing.
"""

from __future__ import annotations

import gc
import os
import sys
import time

_FULL = 2


class Watch:
    """Writes a line for each full collection: when it ended (time.monotonic), the milliseconds of
    CPU time of its thread, the process and how it was started.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._began = 0.0
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._began = time.thread_time()
            return
        ms = 1000 * (time.thread_time() - self._began)
        with open(self._path, "a") as file:
            file.write(f"{time.monotonic()} {ms:.2f} {os.getpid()} {' '.join(sys.orig_argv)}\n")


if file := os.environ.get("GC_WATCH"):
    Watch(file)
