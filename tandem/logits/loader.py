"""Finds the class that a deployment's configuration means.

Three kinds of words: an import path ("package.module:Class"), the name of a ready-made processor,
and the name of an entry point that an installed distribution declares in its group
`tandem.logits_processors`.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

from tandem.errors import LoadError
from tandem.logits.processor import INTERFACE_VERSION, LogitsProcessor, Need
from tandem.logits.ready import READY
from tandem.usercode.loader import load_entry_point, load_object

GROUP = "tandem.logits_processors"


def load_class(name: str, use: str) -> type[LogitsProcessor]:
    """The class that `use` means, fit to serve as `name`. Raises LoadError, which says why not."""
    found = _found(name, use)
    if not isinstance(found, type):
        raise LoadError(f"logits processor {name!r}: {use} is not a class")
    examine(name, found)
    return found


def examine(name: str, cls: type[Any]) -> None:
    """Raises LoadError where `cls` cannot serve, whatever its arguments."""
    version = getattr(cls, "interface_version", INTERFACE_VERSION)
    if version != INTERFACE_VERSION:
        raise LoadError(
            f"logits processor {name!r} ({cls.__qualname__}) was written for interface version "
            f"{version}; this worker has version {INTERFACE_VERSION}"
        )
    if not any("__call__" in vars(base) for base in cls.__mro__) or inspect.isabstract(cls):
        raise LoadError(f"logits processor {name!r}: {cls.__qualname__} has no __call__ method")
    unknown = [need for need in getattr(cls, "needs", ()) if not isinstance(need, Need)]
    if unknown:
        raise LoadError(
            f"logits processor {name!r}: `needs` holds {unknown[0]!r}, which is no Need"
        )


def import_path(name: str, cls: type[Any]) -> str:
    """ "module:Class", by which another process finds it. Raises LoadError where none could."""
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not cls or cls.__module__ == "__main__":
        raise LoadError(
            f"logits processor {name!r}: another process cannot import {cls.__qualname__}; put "
            "the class, or the function with its @callback, at the top of a module"
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def _found(name: str, use: str) -> Any:
    if "." in use or ":" in use:
        return load_object(use)
    if use in READY:
        return load_object(READY[use])
    try:
        return load_entry_point(GROUP, use)
    except LoadError as error:
        raise LoadError(
            f"logits processor {name!r}: {use!r} is not an import path "
            f'("package.module:Class") and not ready-made ({", ".join(sorted(READY))}): {error}'
        ) from error
