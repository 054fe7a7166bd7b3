"""What plots of `tandem bench` and `tandem replay` are drawn with, in SVG: axes with round ticks,
words, lines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.sax.saxutils import escape

HEAD = 64
"""Pixels above all panels, for the title and the parameters."""
LINE_CHARACTERS = 125
"""A line of parameters fits above two panels."""
OBJECTIVE = "firebrick"
_ROUND = (1, 2, 5)
_WIDE = 20
"""An axis is logarithmic where the largest value is more than so many times the smallest."""


@dataclass(slots=True, frozen=True)
class Axis:
    """From `low` to `high`, which are ticks; `place` says where between them a value stands."""

    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one; a value beyond an end stands at the end."""
        if self.logarithmic:
            low, high = math.log(self.low), math.log(self.high)
            value = math.log(max(value, self.low))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))


def axis(values: Iterable[float], *, logarithmic: bool | None = None) -> Axis:
    """An axis on which all values stand. `logarithmic` None: where they are far from each other;
    else the axis begins at 0. Values of 0 and below stand at the low end.
    """
    positive = sorted(value for value in values if 0 < value < math.inf)
    if not positive:
        return Axis(0.0, 1.0, (0.0, 0.5, 1.0))
    low, high = positive[0], positive[-1]
    if logarithmic is None:
        logarithmic = high > _WIDE * low
    if not logarithmic:
        step = _at_least(high / 5)
        ticks = [round(step * number, 12) for number in range(math.ceil(high / step - 1e-9) + 1)]
        return Axis(0.0, ticks[-1], ticks)
    first, last = _at_most(low), _at_least(high)
    if first == last:
        last = _at_least(first * 1.5)
    decades = range(math.floor(math.log10(first) + 1e-9), math.ceil(math.log10(last) - 1e-9) + 1)
    of_each = _ROUND if len(decades) < 5 else _ROUND[:1]
    ticks = [float(f"{digit}e{decade}") for decade in decades for digit in of_each]
    inside = [tick for tick in ticks if first * 0.999 <= tick <= last * 1.001]
    return Axis(first, last, inside, logarithmic=True)


def _at_least(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 …, upwards."""
    power = math.floor(math.log10(value))
    steps = [float(f"{digit}e{each}") for each in (power, power + 1) for digit in _ROUND]
    return next(each for each in steps if each >= value * (1 - 1e-9))


def _at_most(value: float) -> float:
    power = math.floor(math.log10(value))
    steps = [float(f"{digit}e{each}") for each in (power - 1, power) for digit in _ROUND]
    return next(each for each in reversed(steps) if each <= value * (1 + 1e-9))


def seconds(value: float) -> str:
    """With the unit that needs the fewest digits."""
    if value >= 1 or value == 0:
        return f"{value:g} s"
    return f"{value * 1e3:g} ms" if value >= 1e-3 else f"{value * 1e6:g} µs"


def picture(
    title: str, parameters: Sequence[str], panels: Sequence[str], width: int, height: int
) -> str:
    """Panels in rows of two, below the title, the parameters and the date."""
    words = [*parameters, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"]
    lines = [text(12, 22, title, "start", size=15)]
    told = [""]
    for word in words:
        joined = f"{told[-1]} · {word}" if told[-1] else word
        if len(joined) <= LINE_CHARACTERS:
            told[-1] = joined
        else:
            told.append(word)
    lines += [
        text(12, 40 + 15 * place, each, "start", "dimgrey") for place, each in enumerate(told)
    ]
    top = HEAD + 15 * (len(told) - 1)
    drawn = [
        f'<g transform="translate({place % 2 * width} {top + place // 2 * height})">{panel}</g>'
        for place, panel in enumerate(panels)
    ]
    if not panels:
        drawn = [text(12, top + 20, "nothing to draw: no answer came whole", "start")]
    rows = max(1, (len(panels) + 1) // 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width}" '
        f'height="{top + rows * height}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(lines + drawn)}</svg>\n'
    )


def text(
    x: float, y: float, words: str, anchor: str = "middle", colour: str = "black", size: int = 12
) -> str:
    """Words are escaped: a model or a fleet may be called anything."""
    shown = "".join(each if each.isprintable() else "?" for each in words)
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}"'
    return f"<text {place}>{escape(shown)}</text>"


def line(path: str, colour: str = "black", *, dashed: bool = False) -> str:
    """A path without filling."""
    dashes = ' stroke-dasharray="4"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}"{dashes}/>'
