"""Notes whose code takes a process's CPU time, for unit_cost.py: Python imports this by itself
where PYTHONPATH names its folder. Without UNIT_WATCH in the environment, a folder that each process
writes a file of its own to, it does nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from types import FrameType
from typing import Any

_SECONDS = 0.002
"""CPU time between two looks, as far as the kernel's clock goes."""
_LOOKS = 32
"""So many are written at once."""
_FORKS = "tandem.logits.forms.process"
"""A program that executes itself again, whose timer would end it before there is a handler."""
_OURS, _THEIRS = "tandem", "sglang"


class Watch:
    """Looks at the main thread each time that the process has used more CPU. The time since the
    look before goes to the nearest caller that is SGLang's or Tandem's: what SGLang does when one
    of Tandem's calls it is SGLang's, and what torch does goes to who called torch.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, f"{os.getpid()}.json")
        self._process = os.getpid()
        self._seconds: Counter[str] = Counter()
        self._last = time.process_time()
        self._looks = 0
        signal.signal(signal.SIGPROF, self._look)
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS, _SECONDS)

    def _look(self, _: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork inherits no timer, but may get the signal
            return
        now = time.process_time()
        self._seconds[_whose(frame)] += now - self._last
        self._last = now
        self._looks += 1
        if self._looks % _LOOKS == 0:
            self._write()

    def _write(self) -> None:
        with open(f"{self._path}.part", "w") as file:
            json.dump({"command": sys.orig_argv, "seconds": self._seconds}, file)
        os.replace(f"{self._path}.part", self._path)


def _whose(frame: Any) -> str:
    """The kit's module, "tandem" for what is called by none of the kit's, "sglang", or ""."""
    while frame is not None:
        package, _, module = str(frame.f_globals.get("__name__", "")).partition(".")
        if package == _THEIRS:
            return _THEIRS
        if package == "tandem_sglang":
            return module
        if package.startswith(_OURS):
            return _caller(frame.f_back) or _OURS
        frame = frame.f_back
    return ""


def _caller(frame: Any) -> str:
    """The kit's module that has called the rest of Tandem."""
    while frame is not None:
        package, _, module = str(frame.f_globals.get("__name__", "")).partition(".")
        if package == "tandem_sglang":
            return module
        if not package.startswith(_OURS):
            return ""
        frame = frame.f_back
    return ""


if (folder := os.environ.get("UNIT_WATCH")) and _FORKS not in sys.orig_argv:
    Watch(folder)
