"""Checks of a ready-made hook's configuration. Each raises LoadError, naming the argument."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tandem.errors import LoadError


def one_of(name: str, value: object, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise LoadError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def text(name: str, value: object, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise LoadError(f"{name} must be a text, not {value!r}")
    return value


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise LoadError(f"{name} must be true or false, not {value!r}")
    return value


def whole(name: str, value: object, *, least: int = 1, most: int = 2**31) -> int:
    if type(value) is not int or not least <= value <= most:
        raise LoadError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


def texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise LoadError(f"{name} must be a list of texts, not {value!r}")
    return list(value)


def some_of(name: str, value: object, allowed: Collection[str]) -> list[str]:
    """The named values, checked; None stands for every allowed value."""
    if value is None:
        return list(allowed)
    chosen = texts(name, value)
    unknown = [one for one in chosen if one not in allowed]
    if unknown or not chosen:
        raise LoadError(f"{name} must be some of {', '.join(allowed)}, not {value!r}")
    return chosen


def mapping(name: str, value: object, known: Collection[str]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise LoadError(f"{name} must be a mapping, not {value!r}")
    unknown = sorted(str(key) for key in value if key not in known)
    if unknown:
        raise LoadError(f"{name} has no {', '.join(unknown)}; it takes {', '.join(known)}")
    return value
