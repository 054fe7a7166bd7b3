"""A number out of a setting's range is refused by its name, for every setting that has a range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from one_case import one_case

from tandem import ranges
from tandem.errors import ConfigError
from tandem.ranges import Range, ranged
from tandem.worker.config import WorkerConfig
from tandem_executor.config import ExecutorConfig
from tandem_frontend.config import FrontendConfig
from tandem_router.config import RouterConfig
from tandem_sglang import options as sglang_options
from tandem_sim.faults import Faults
from tandem_sim.options import SimOptions

MADE: dict[type[Any], Callable[..., object]] = {
    FrontendConfig: partial(FrontendConfig, model_path="m"),
    RouterConfig: RouterConfig,
    WorkerConfig: partial(WorkerConfig, model_path=Path("m")),
    SimOptions: SimOptions,
    Faults: Faults,
    sglang_options.Options: lambda **given: sglang_options.parse(given),
    ExecutorConfig: ExecutorConfig,
}
"""What refuses a setting that is out of its range, by the class of the settings."""


def refused() -> Iterator[Any]:
    """Each setting with a range, and the nearest numbers that the range does not have."""
    for model in MADE:
        for field in dataclasses.fields(model):
            range = ranges.of(field)
            below = range.above if range.above is not None else range.at_least
            outside = [] if below is None else [below if below == range.above else below - 1]
            outside += [] if range.at_most is None else [range.at_most + 1]
            outside += [] if range.below is None else [range.below]
            for value in outside:
                yield pytest.param(model, field.name, value, id=f"{field.name}-{value}")


@one_case(("model", "name", "value"), [*refused()])
def test_a_number_out_of_range_is_refused_by_name(
    model: type[Any], name: str, value: float
) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be .*, not {value}"):
        MADE[model](**{name: value})


@pytest.mark.parametrize("bounds", [Range(above=0), Range(at_least=0), Range(at_most=0)])
def test_no_range_has_what_is_no_number(bounds: Range) -> None:
    assert not bounds.has(math.nan)


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        (Range(above=0), [0.1, math.inf], [0, -1], "above 0"),
        (Range(at_least=0), [0, 1], [-0.1], "at least 0"),
        (Range(above=0, at_most=5), [0.1, 5], [0, 5.1], "above 0 and at most 5"),
        (Range(at_least=1, at_most=64), [1, 64], [0, 65], "from 1 to 64"),
        (Range(at_least=0, below=1), [0, 0.9], [-1, 1], "at least 0 and below 1"),
        (Range(), [-1, 0, 1], [], ""),
    ],
)
def test_a_range_has_its_closed_ends_and_says_so(
    bounds: Range, inside: list[float], outside: list[float], words: str
) -> None:
    assert [value for value in (*inside, *outside) if bounds.has(value)] == inside
    assert str(bounds) == words


def test_the_owner_of_a_setting_is_named() -> None:
    @dataclasses.dataclass
    class Options:
        pace: float = ranged(1.0, Range(above=0))

    with pytest.raises(ConfigError, match=r"^the drum's pace must be above 0, not -1$"):
        ranges.check(Options(pace=-1), owner="the drum's ")
