"""How long workers take: tables of measured points, and straight lines between them."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
import yaml

from tandem.errors import ConfigError

if TYPE_CHECKING:
    from tandem_sim.options import SimOptions

MAX_FILE_BYTES = 1 << 16
_MANY = 1000
AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)
_Number = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Points = Annotated[
    tuple[tuple[_Number, _Number], ...], msgspec.Meta(min_length=1, max_length=_MANY)
]
"""Pairs of a size and milliseconds, with growing sizes."""


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of times, as its file has it. Beyond the last point the line of the last two goes on,
    where it does not fall; before the first point, and where there is but one, the time is that
    point's.
    """

    prefill_ms: Points
    """Prompt tokens that are not cached, and how long one prompt keeps a worker busy."""
    step_ms: Points
    """Sequences that run at once, and how long a step takes: one token for each."""
    transfer_ms: Points = ((0.0, 0.0),)
    """Prompt tokens, and how long the hand-over of their KV takes."""
    overhead_ms: _Number = 0.0
    """What the frontend, the network and the streams add to each time to first token."""

    def __post_init__(self) -> None:
        for name in ("prefill_ms", "step_ms", "transfer_ms"):
            sizes = [size for size, _ in getattr(self, name)]
            if any(later <= size for size, later in pairwise(sizes)):
                raise ValueError(f"{name}: the sizes do not grow from point to point")
        if not all(took for _, took in self.step_ms):
            raise ValueError("step_ms: a step takes longer than nothing")


class Curve:
    """Seconds by size, on straight lines between points."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """`points` are a size and milliseconds each, with growing sizes."""
        self._sizes = [size for size, _ in points]
        self._seconds = [took / 1000 for _, took in points]

    def __call__(self, size: float) -> float:
        sizes, seconds = self._sizes, self._seconds
        place = bisect_right(sizes, size)
        if place == 0 or len(sizes) == 1:
            return seconds[0]
        place = min(place, len(sizes) - 1)
        slope = (seconds[place] - seconds[place - 1]) / (sizes[place] - sizes[place - 1])
        if place == len(sizes) - 1 and size > sizes[place]:
            slope = max(0.0, slope)
        return seconds[place] + (size - sizes[place]) * slope


def of_sim(options: SimOptions) -> Times:
    """The times of the sim engine with those options. It moves KV in no time of its own."""
    prompts, sequences = 1000, 100
    base, step = options.prefill_base_ms, options.step_ms
    return Times(
        prefill_ms=((0, base), (prompts, base + prompts * options.prefill_ms_per_token)),
        step_ms=((0, step), (sequences, step + sequences * options.step_ms_per_sequence)),
    )


def read(path: Path) -> Times:
    """Raises ConfigError where the file cannot be read, or is no table of times."""
    return decoded(path, Times)


def encoded(table: Times) -> str:
    """A file that `read` reads."""
    rows = msgspec.to_builtins(table)
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in rows.items())


def decoded(path: Path, kind: type[AnyStruct]) -> AnyStruct:
    """A small YAML file as such a struct. Raises ConfigError, with the field that is wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} has more than {MAX_FILE_BYTES:,} bytes")
    try:
        # Not msgspec's loader: that is C, and takes the process with it where brackets are deep.
        return msgspec.convert(yaml.safe_load(content), type=kind)
    except (msgspec.ValidationError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
