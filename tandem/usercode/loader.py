"""Finds the code that a setting names: by import path, or as an entry point of an installed
package.

Every way in which that can fail is a LoadError with a message of its own, so that a worker never
starts without what it was asked to run.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from importlib import metadata
from typing import Any

from tandem.errors import LoadError
from tandem.usercode.call import Failed


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
                f"PYTHONPATH"
            ) from error
        raise LoadError(
            f"{path!r}: module {module_name!r} imports {error.name!r}, which is not installed"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raised = Failed(error).words
        raise LoadError(
            f"{path!r}: module {module_name!r} raised while it was imported: {raised}"
        ) from error
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LoadError(f"{path!r}: module {module_name!r} has no {names!r}") from None
    return found


def load_named(group: str, path: str) -> Any:
    """What `path` names: an entry point of `group`, by its name, or else by an import path.

    Raises LoadError as load_entry_point and load_object.
    """
    return load_entry_point(group, path) if path.isidentifier() else load_object(path)


def entry_points(group: str) -> metadata.EntryPoints:
    """What installed packages offer in a group."""
    return found_on(tuple(sys.path), group)


@functools.cache
def found_on(path: tuple[str, ...], group: str) -> metadata.EntryPoints:
    """`entry_points`, looked for once in the folders of an import path: that reads a file of every
    installed package.
    """
    return metadata.entry_points(group=group)


def load_entry_point(group: str, name: str) -> Any:
    """What an installed package offers as entry point `name` of `group`.

    Raises LoadError: no package offers it, several do, or as load_object.
    """
    points = entry_points(group)
    found = {f"{point.module}:{point.attr}" for point in points if point.name == name}
    if len(found) == 1:
        return load_object(found.pop())
    if found:
        raise LoadError(
            f"several installed packages offer {name!r} as an entry point of the group {group}"
        )
    known = ", ".join(sorted({point.name for point in points})) or "none"
    raise LoadError(
        f"no installed package offers {name!r} as an entry point of the group {group}; "
        f"there is {known}"
    )


def is_async(function: Any) -> bool:
    """Whether it is an `async def`, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - an object whose __call__ is async
    )


def check_takes_one(function: Any, what: str) -> None:
    """Raises LoadError, which begins with `what`, unless it can be called with one argument. Where
    there is no readable signature the first call decides.
    """
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise LoadError(f"{what}: {error}") from error
    except ValueError:
        pass


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
