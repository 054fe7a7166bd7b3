"""What replays found, as an SVG: for each figure a panel, with a bar for each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tandem_tools import drawing
from tandem_tools.bench.figures import percentiles
from tandem_tools.trace_replay.results import ReplayResult

WIDTH, HEIGHT, MARGIN = 420, 314, 56
"""Pixels: a panel is so wide and high, and so much is free around what is drawn in it."""
NAMES = 90
"""Pixels below the bars: the names of fleets."""
FLAT = 60
"""Pixels that a fleet must have for its name to be written flat; else it is slanted."""
COLOURS = ("steelblue", "darkorange", "seagreen", "purple", "sienna", "dimgrey")


@dataclass(slots=True, frozen=True)
class _Panel:
    """`objective`: the value that bars are held to, or None."""

    title: str
    value: Callable[[ReplayResult], float]
    objective: Callable[[ReplayResult], float] = lambda _: 0.0
    always: bool = False
    """Drawn where all values are 0 too, which says something then."""


_PANELS = (
    _Panel(
        "TTFT p90, s",
        lambda each: percentiles(each.figures.ttft).get("p90", 0.0),
        lambda each: each.figures.slo.ttft_seconds,
    ),
    _Panel(
        "ITL p90, ms",
        lambda each: 1000 * percentiles(each.figures.itl).get("p90", 0.0),
        lambda each: 1000 * each.figures.slo.itl_seconds,
    ),
    _Panel("hit rate, share of prompt tokens", lambda each: each.hit_rate),
    _Panel("goodput, requests/s", lambda each: each.goodput, always=True),
)


def svg(results: Sequence[ReplayResult], *, title: str, parameters: Sequence[str]) -> str:
    """Rows of two panels. The fleets stand beside each other in the order of their replays; a
    figure of which there is nothing has no panel.
    """
    drawn = [
        "".join(_panel(each, results))
        for each in _PANELS
        if each.always or any(map(each.value, results))
    ]
    return drawing.picture(title, parameters, drawn, WIDTH, HEIGHT)


def _panel(panel: _Panel, results: Sequence[ReplayResult]) -> Iterator[str]:
    fleets = list(dict.fromkeys(each.fleet for each in results))
    policies = list(dict.fromkeys(each.policy for each in results))
    objective = panel.objective(results[0])
    values = [value for each in results if (value := panel.value(each)) > 0]
    least = min(values, default=0.0)  # half of it: on a logarithmic axis that bar has a height too
    # Only times are compared by their ratio, and reach far.
    logarithmic = None if objective else False
    axis = drawing.axis((*values, objective, least / 2), logarithmic=logarithmic)
    left, right, top, bottom = MARGIN, WIDTH - 8, MARGIN, HEIGHT - NAMES
    each_fleet = (right - left) / len(fleets)
    bar = 0.8 * each_fleet / len(policies)

    def y(value: float) -> float:
        return bottom - axis.place(value) * (bottom - top)

    scale = " (logarithmic)" if axis.logarithmic else ""
    yield drawing.text(WIDTH / 2, 18, f"{panel.title}{scale}")
    for tick in axis.ticks:
        yield drawing.line(f"M{left} {y(tick):.1f}H{right}", "lightgrey")
        yield drawing.text(left - 6, y(tick) + 4, f"{tick:g}", "end")
    for place, policy in enumerate(policies):
        x = left + place * (right - left) / len(policies)
        yield drawing.text(x, 40, policy, "start", COLOURS[place % len(COLOURS)])
    for place, fleet in enumerate(fleets):
        yield _fleet(left + (place + 0.5) * each_fleet, bottom + 18, fleet, each_fleet < FLAT)
    for result in results:
        place = policies.index(result.policy)
        x = left + (fleets.index(result.fleet) + 0.1) * each_fleet + place * bar
        above = y(panel.value(result))
        yield (
            f'<rect x="{x:.1f}" y="{above:.1f}" width="{bar:.1f}" '
            f'height="{bottom - above:.1f}" fill="{COLOURS[place % len(COLOURS)]}"/>'
        )
    yield drawing.line(f"M{left} {bottom}H{right}")
    if objective:
        height = y(objective)
        yield drawing.line(f"M{left} {height:.1f}H{right}", drawing.OBJECTIVE, dashed=True)
        yield drawing.text(right, height - 4, f"SLO {objective:g}", "end", drawing.OBJECTIVE)


def _fleet(x: float, y: float, name: str, slanted: bool) -> str:
    """A fleet's name below its bars. Two neighbours' names must not lie on each other."""
    if not slanted:
        return drawing.text(x, y, name)
    return f'<g transform="rotate(-30 {x:.1f} {y - 8:.1f})">{drawing.text(x, y, name, "end")}</g>'
