"""Tandem's packages, and how a process of Tandem is started, so that no module of a user's is ever
taken for one of them.

`router`, `frontend` and the others are names that belong to everybody: a user's project may have a
`router.py` in the folder in which Tandem is started, or on PYTHONPATH. A finder before all others
looks for these names in the folder that holds this package, and nowhere else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
"""The folder that holds all packages."""
PACKAGES: Final = (
    "frontend",
    "router",
    "prefill_worker",
    "decode_worker",
    "aggregated_worker",
    "local_executor",
    "trace_replay",
    "tandem",
)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(ROOT)]) if fullname in PACKAGES else None


_FINDER: Final = _Finder()


def prefer() -> None:
    """From now on this process, one of Tandem's own, finds these packages before all others."""
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def import_into_program(module: str) -> ModuleType:
    """Import a module of these packages into a program that is not Tandem's own, which keeps its
    way of finding modules. Raises StartError where the program has a module by one of these names,
    and ModuleNotFoundError where a package that is needed is not installed.
    """
    # Imports gRPC, which the start of a command does without.
    from tandem.errors import StartError

    for name in PACKAGES:
        found = sys.modules.get(name)
        if found is not None and not _is_own(name, found):
            raise StartError(
                f"this program has a module {name!r} of its own"
                f" ({getattr(found, '__file__', None)}), and Tandem a package of that name:"
                " engines of the executor's own need another name for the program's module, or a"
                " program without it"
            )
    with _preferred():
        return importlib.import_module(module)


def command(module: str, *arguments: str, parent: int = 0) -> list[str]:
    """The argument vector of a process that runs a module of these packages. `parent`: the process
    that starts it, with which it ends, however that ends; 0: it lives on.
    """
    program = str(ROOT / "tandem" / "component.py")
    bound = [f"--end-with={parent}"] if parent else []
    return [sys.executable, "-P", program, *bound, module, *arguments]


def _is_own(name: str, module: ModuleType) -> bool:
    place = getattr(module, "__file__", None)
    return place is not None and Path(place).resolve().parent == ROOT / name


@contextmanager
def _preferred() -> Iterator[None]:
    """As `prefer`, but within the block alone."""
    before = _FINDER in sys.meta_path
    prefer()
    try:
        yield
    finally:
        if not before:
            sys.meta_path.remove(_FINDER)
