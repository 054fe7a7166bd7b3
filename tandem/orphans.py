"""Processes that end with the one that started them, whatever they are doing."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
"""prctl(2)."""


def die_with(parent: int) -> None:
    """Let the kernel kill this process when the thread that started it ends, so that a parent that
    is killed leaves nothing behind. Raises OSError where the kernel refuses, or where `parent`, a
    process id, has gone already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        raise ProcessLookupError(f"the parent {parent} has gone")
