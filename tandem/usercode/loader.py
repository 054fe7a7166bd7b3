"""Finds the code that a setting names.

Every way in which that can fail is a LoadError with a message of its own, so that a worker never
starts without what it was asked to run.
"""

from __future__ import annotations

import importlib
from typing import Any

from tandem.errors import LoadError
from tandem.usercode import lifecycle


def load_object(path: str) -> Any:
    """What `path` names: "package.module:Name" or "package.module.Name".

    Raises LoadError: the path is malformed, there is no such module, the module raised while it was
    imported, or it has no such name.
    """
    module_name, names = _split(path)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise LoadError(
                f"{path!r}: there is no module {error.name!r}; install it, or put its folder on "
                "PYTHONPATH"
            ) from error
        raise LoadError(
            f"{path!r}: module {module_name!r} imports {error.name!r}, which is not installed"
        ) from error
    except Exception as error:
        raise LoadError(
            f"{path!r}: module {module_name!r} raised while it was imported: "
            f"{lifecycle.words(error)}"
        ) from error
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LoadError(f"{path!r}: module {module_name!r} has no {names!r}") from None
    return found


def _split(path: str) -> tuple[str, str]:
    """Module and attribute. With a colon the attribute may be nested; with dots it is the last."""
    module_name, colon, names = path.partition(":")
    if not colon:
        module_name, _, names = path.rpartition(".")
    parts = [*module_name.split("."), *names.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise LoadError(
            f'{path!r} is not an import path: write "package.module.Class" or '
            '"package.module:Class"'
        )
    return module_name, names
