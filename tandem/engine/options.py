"""An engine's options, as `engine_options` of a worker's settings gives them, checked."""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from tandem import config, ranges
from tandem.errors import ConfigError
from tandem.settings_file import nearest

T = TypeVar("T")
_OWNER = "engine option "


def parse(model: type[T], given: Mapping[str, Any], *, engine: str, prefix: str = "") -> T:
    """`given` as the options class `model` of an engine; the names in `given` begin with `prefix`.
    Text becomes what the field is. Raises ConfigError, naming the option that is unknown or does
    not fit.
    """
    hints = {prefix + name: hint for name, hint in typing.get_type_hints(model).items()}
    if unknown := sorted(given.keys() - hints.keys()):
        hinted = ", ".join(repr(name) + nearest(name, hints) for name in unknown)
        raise ConfigError(
            f"unknown option of the {engine} engine: {hinted}; it knows {', '.join(sorted(hints))}"
        )
    options = model(
        **{
            name.removeprefix(prefix): config.convert(value, hints[name], _OWNER + name)
            for name, value in given.items()
        }
    )
    ranges.check(options, owner=_OWNER + prefix)
    return options


def json_object(text: str, name: str) -> dict[str, Any]:
    """The JSON object of the option `name`; {} where `text` is empty. Raises ConfigError."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"{_OWNER}{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{_OWNER}{name} must be a JSON object")
    return found
