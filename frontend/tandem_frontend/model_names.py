"""What names stand for: a file that gives models further names, and divides requests for one name
between several models. It is read again when it changes.

Targets are models by their own names, and never other names: nothing can go round in circles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple, TypeAlias

import yaml

from tandem.errors import ConfigError
from tandem.watched_file import WatchedFile

MAX_BYTES = 256 * 1024
MAX_NAMES = 1_000
MAX_TARGETS = 16
"""Models that one name may stand for."""
MAX_LENGTH = 200
"""Characters of a name."""


class ModelTarget(NamedTuple):
    model: str
    weight: float
    """The target's share of the name's requests, beside the other targets' weights; 0: none."""


Targets: TypeAlias = Sequence[ModelTarget]
Names: TypeAlias = Mapping[str, Targets]


class NamesFile(WatchedFile[Names]):
    """The names of a file as it last could be used."""

    def __init__(self, path: str) -> None:
        """Raises ConfigError where it cannot be used."""
        super().__init__(
            path,
            parse,
            max_bytes=MAX_BYTES,
            on_changed="names of models read again",
            on_failed="names of models not read again",
        )


def parse(content: bytes, file: str) -> Names:
    """The names of a file's content: YAML or JSON, a mapping of each to a model, or to models with
    their weights. Raises ConfigError, which names the entry at fault.
    """
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{file} is larger than {MAX_BYTES} bytes")
    try:
        found = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"cannot read names of models from {file}: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{file} must hold a mapping of names to models")
    if len(found) > MAX_NAMES:
        raise ConfigError(f"{file} holds {len(found)} names; {MAX_NAMES} are the most")
    return {_name(each, file): _targets(given, each, file) for each, given in found.items()}


def choose(name: str, targets: Targets, user: str | None, draw: Callable[[], float]) -> str:
    """The model that a request for a name goes to. Requests of one `user` go to one model as long
    as the weights stay; where these move, so do the users of the share that moved, and no others.
    `draw`: a random number from 0 to below 1.
    """
    if len(targets) == 1:
        return targets[0].model
    point = _point(name, user) if user else draw()
    left = point * sum(target.weight for target in targets)
    for target in targets:
        left -= target.weight
        if left < 0:
            return target.model
    return max(targets, key=lambda target: target.weight).model  # floats may not add up


def _point(name: str, user: str) -> float:
    """From 0 to below 1, and the same in every frontend."""
    digest = hashlib.sha256(f"{name}\0{user}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6]) / 2**48


def _name(given: object, file: str) -> str:
    if not isinstance(given, str) or not given.strip() or len(given) > MAX_LENGTH:
        raise ConfigError(f"{file}: {given!r:.100} is no name of 1 to {MAX_LENGTH} characters")
    return given


def _targets(given: object, name: str, file: str) -> Targets:
    if isinstance(given, str):
        return (ModelTarget(_name(given, file), 1.0),)
    if not isinstance(given, dict) or not given:
        raise ConfigError(f"{file}: `{name}` must be a model, or models with their weights")
    if len(given) > MAX_TARGETS:
        raise ConfigError(f"{file}: `{name}` has more than {MAX_TARGETS} models")
    targets = tuple(
        ModelTarget(_name(model, file), _weight(weight, name, file))
        for model, weight in given.items()
    )
    if not any(target.weight for target in targets):
        raise ConfigError(f"{file}: `{name}` has no model with a weight above 0")
    return targets


def _weight(given: object, name: str, file: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ConfigError(f"{file}: a weight of `{name}` is no number")
    if not (isfinite(given) and 0 <= given <= 1_000_000):
        raise ConfigError(f"{file}: weights of `{name}` must be from 0 to 1000000")
    return float(given)
