"""Loads the code that a setting names by import path, and builds the hook of a worker.

Every way in which that can fail is a LoadError with a message of its own, so that a worker never
starts without the hook it was asked to run.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from tandem.errors import LoadError
from tandem.hooks import life
from tandem.hooks.contract import Hook
from tandem.hooks.ready import READY


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
            f"{path!r}: module {module_name!r} raised while it was imported: {life.words(error)}"
        ) from error
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LoadError(f"{path!r}: module {module_name!r} has no {names!r}") from None
    return found


def load_hook(path: str, config: Mapping[str, Any] | None = None) -> Hook:
    """One instance of the hook class at `path`, made with `config` as keyword arguments, without
    any as a rule (S0-001, S0-002, S0-003). A path without dots names a ready-made hook.

    Raises LoadError, which names the path and what is wrong with it.
    """
    hook_class = load_object(READY.get(path, path))
    if not isinstance(hook_class, type):
        raise LoadError(f"hook {path!r} is a {type(hook_class).__name__}, not a class")
    instance = life.build(f"hook {path!r}", hook_class, config or {})
    if not callable(instance):
        raise LoadError(
            f"hook {path!r} is not callable: give the class a method __call__(self, chunk)"
        )
    if inspect.isasyncgenfunction(type(instance).__call__):
        raise LoadError(f"hook {path!r}: its __call__ is a generator; it must return one verdict")
    _check_signature(path, instance)
    hook: Hook = instance
    return hook


def is_async(instance: Any) -> bool:
    """Whether its __call__ is `async def`."""
    return inspect.iscoroutinefunction(type(instance).__call__)


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


def _check_signature(path: str, instance: Any) -> None:
    try:
        inspect.signature(instance).bind(None)
    except TypeError as error:
        raise LoadError(
            f"hook {path!r}: its __call__ must take the chunk alone: {error}"
        ) from error
    except ValueError:
        pass  # no readable signature: the first call decides, and fails closed
