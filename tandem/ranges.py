"""The range of a setting's values, declared beside its field and checked for all fields at once."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from tandem.errors import ConfigError

_KEY = "range"


class Range(NamedTuple):
    """Numbers that a setting takes; a bound that is None is not there."""

    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    below: float | None = None

    def has(self, value: float) -> bool:
        """Whether the range has the number; no range has NaN."""
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and value == value
        )

    def __str__(self) -> str:
        """In words, as `above 0 and at most 5`; empty where every number is taken."""
        if self.above is None and None not in (self.at_least, self.at_most):
            return f"from {self.at_least} to {self.at_most}"
        bounds = [(name, bound) for name, bound in self._asdict().items() if bound is not None]
        return " and ".join(f"{name.replace('_', ' ')} {bound}" for name, bound in bounds)


ANY = Range()


def ranged(default: Any, bounds: Range, **metadata: Any) -> Any:
    """A field of a dataclass whose values `check` holds to the range."""
    return dataclasses.field(default=default, metadata={_KEY: bounds, **metadata})


def of(field: dataclasses.Field[Any]) -> Range:
    """The range of a dataclass's field."""
    found: Range = field.metadata.get(_KEY, ANY)
    return found


def check(settings: Any, *, owner: str = "") -> None:
    """Raises ConfigError for the first field of a dataclass whose value is out of its range.
    `owner` stands before the field's name in the error.
    """
    for field in dataclasses.fields(settings):
        bounds, value = of(field), getattr(settings, field.name)
        if bounds is not ANY and not bounds.has(value):
            raise ConfigError(f"{owner}{field.name} must be {bounds}, not {value}")
