"""Builds the classifiers that settings name: by import path, or from installed packages.

A worker never starts without a classifier that it was asked to run: every failure is a LoadError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tandem.errors import LoadError
from tandem.hooks.classifiers.settings import ClassifierEntry
from tandem.usercode import lifecycle
from tandem.usercode.call import Caller, Failed
from tandem.usercode.loader import load_entry_point, load_named

GROUP = "tandem.classifiers"
"""The entry-point group of packages that offer classes, which entries name by their `path`, and
functions that register classifiers by code, which `plugins` names.
"""


def load_classifier(entry: ClassifierEntry) -> Any:
    """One instance of the entry's class, made with its config as keyword arguments. What the entry
    says of name, blocking and timeout_ms is set on it.

    Raises LoadError, which names the path and what is wrong with it.
    """
    path = entry.path
    found = load_named(GROUP, path)
    if not isinstance(found, type):
        raise LoadError(f"classifier {path!r} is a {type(found).__name__}, not a class")
    instance = lifecycle.build(f"classifier {path!r}", found, entry.config)
    given = {"name": entry.name, "blocking": entry.blocking, "timeout_ms": entry.timeout_ms}
    if entry.name is None and not hasattr(instance, "name"):
        given["name"] = path
    if entry.timeout_ms is None and not hasattr(instance, "timeout_ms"):
        given["timeout_ms"] = 1000
    for attribute, value in given.items():
        if value is not None:
            _set(path, instance, attribute, value)
    return instance


def load_plugin(name: str) -> Callable[[Any], object]:
    """The function that a package offers as entry point `name` of the group `tandem.classifiers`.
    It is called with the ClassifierSet.

    Raises LoadError: no package offers it, several do, it cannot be imported, or is no function.
    """
    register = load_entry_point(GROUP, name)
    if isinstance(register, type) or not callable(register):
        raise LoadError(f"classifier plugin {name!r} is a {type(register).__name__}, no function")

    def call(classifiers: Any) -> None:
        answer = Caller(math.inf).call(register, classifiers)
        if not isinstance(answer, Failed):
            return
        what = (
            f": {answer.text}" if isinstance(answer.error, LoadError) else f" raised {answer.words}"
        )
        raise LoadError(f"classifier plugin {name!r}{what}") from answer.error

    return call


def _set(path: str, instance: Any, attribute: str, value: Any) -> None:
    try:
        setattr(instance, attribute, value)
    except Exception as error:
        raise LoadError(
            f"classifier {path!r} does not let its {attribute} be set; leave it out of the entry"
        ) from error
