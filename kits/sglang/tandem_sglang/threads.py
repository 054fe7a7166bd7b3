"""Threads of SGLang's scheduler: one that dies ends the engine."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import TracebackType

log = logging.getLogger(__name__)


def report_deaths() -> None:
    """From now on a thread of SGLang that raises is a failure of this process, reported to its
    parent as SGLang reports one. Of itself SGLang logs it at most, and what the thread served waits
    for ever. Threads that user code starts are its own affair.
    """
    show = threading.excepthook

    def raised(died: threading.ExceptHookArgs) -> None:
        show(died)
        if died.exc_type is not SystemExit and _of_sglang(died.exc_traceback):
            log.error("a thread of SGLang has died, and the engine with it")
            os.kill(os.getppid(), signal.SIGQUIT)

    threading.excepthook = raised


def _of_sglang(traceback: TracebackType | None) -> bool:
    """Whether the thread was to run a function of SGLang, whatever that called."""
    while traceback is not None:
        module = str(traceback.tb_frame.f_globals.get("__name__", ""))
        if module != threading.__name__:
            return module.partition(".")[0] == "sglang"
        traceback = traceback.tb_next
    return False
