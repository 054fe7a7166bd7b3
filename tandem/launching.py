"""How a process of Tandem is started: the argument vector of its program, tandem/component.py, and
what becomes of a program that is still being imported.

Every program imports this module first, so the module imports little.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PROGRAM = os.path.join(os.path.dirname(os.path.realpath(__file__)), "component.py")


def command(module: str, *arguments: str, parent: int = 0) -> list[str]:
    """The argument vector of a process that runs `main` of a module. `parent`: the process that
    starts the new one, which ends with it, however it ends; 0: the new process lives on.
    """
    bound = [f"--end-with={parent}"] if parent else []
    return [sys.executable, "-P", _PROGRAM, *bound, module, *arguments]


def module_of(component: str) -> str:
    """The module whose `main` is a component's, such as "router" or "prefill_worker"."""
    return f"tandem_{component}.__main__"


@contextmanager
def importing() -> Iterator[None]:
    """Ctrl-C ends this process at once meanwhile, and so does a package that is not installed: a
    message names it, and the exit status is 2.
    """
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name.startswith("tandem"):
            raise
        sys.stderr.write(f"tandem: {name} is not installed: pip install tandem-serving\n")
        raise SystemExit(2) from None
    finally:
        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
