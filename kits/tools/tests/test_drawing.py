"""Axes of plots: round ticks, and every value on them."""

from __future__ import annotations

import math

import pytest

from tandem_tools import drawing

ROUND = (1.0, 2.0, 5.0)


@pytest.mark.promise("S5-754")
@pytest.mark.parametrize("logarithmic", [True, False, None])
@pytest.mark.parametrize(
    "values",
    [
        [0.1133],
        [7.269, 2.46],
        [0.001, 60.0],
        [1e-9, 1e9],
        [0.05, 0.05],
        [1.0, 10.0, 100.0],
        [0.0, 3.0],
        [0.3, 0.30000000000000004],
    ],
)
def test_ticks_are_round_few_and_around_all_values(
    values: list[float], logarithmic: bool | None
) -> None:
    axis = drawing.axis(values, logarithmic=logarithmic)
    assert 2 <= len(axis.ticks) <= 20
    assert axis.low <= min(axis.ticks) * 1.001
    assert axis.high >= max(values) * 0.999
    if axis.logarithmic:
        assert axis.low <= min(each for each in values if each) * 1.001
        digits = {round(each / 10 ** math.floor(math.log10(each) + 1e-9), 9) for each in axis.ticks}
        assert digits <= {*ROUND}
    else:
        steps = {
            round(high - low, 9) for low, high in zip(axis.ticks, axis.ticks[1:], strict=False)
        }
        assert axis.low == 0
        assert len(steps) == 1 or max(values) > 1e6
    places = [axis.place(each) for each in sorted(values)]
    assert places == sorted(places)
    assert all(0 <= each <= 1 for each in places)
    assert axis.place(axis.high) == pytest.approx(1)


def test_an_axis_is_logarithmic_where_values_are_far_from_each_other() -> None:
    assert drawing.axis([0.1, 5.0]).logarithmic
    assert not drawing.axis([0.5, 5.0]).logarithmic
    middle = drawing.axis([1.0, 100.0], logarithmic=True)
    assert middle.place(10.0) == pytest.approx(0.5)


def test_of_no_value_and_of_what_is_no_number_there_is_an_axis() -> None:
    for values in ([], [0.0], [-1.0], [math.inf], [math.nan]):
        assert drawing.axis(values).place(0.5) == 0.5


def test_times_have_the_unit_of_fewest_digits() -> None:
    told = [drawing.seconds(each) for each in (2.0, 0.5, 0.005, 2e-5, 0.0)]
    assert told == ["2 s", "500 ms", "5 ms", "20 µs", "0 s"]
