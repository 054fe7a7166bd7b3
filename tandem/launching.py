"""How a process of Tandem is started: the argument vector of its program, tandem/component.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

_PROGRAM: Final = str(Path(__file__).resolve().parent / "component.py")


def command(module: str, *arguments: str, parent: int = 0) -> list[str]:
    """The argument vector of a process that runs `main` of a module. `parent`: the process that
    starts the new one, which ends with it, however it ends; 0: the new process lives on.
    """
    bound = [f"--end-with={parent}"] if parent else []
    return [sys.executable, "-P", _PROGRAM, *bound, module, *arguments]


def module_of(component: str) -> str:
    """The module whose `main` is a component's, such as "router" or "prefill_worker"."""
    return f"tandem_{component}.__main__"
