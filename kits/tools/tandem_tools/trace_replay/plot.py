"""What replays found, as an SVG: for each figure a panel, with a bar for each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from xml.sax.saxutils import escape

from tandem_tools.bench.figures import percentiles
from tandem_tools.trace_replay.results import Result

WIDTH, HEIGHT, MARGIN = 420, 314, 56
"""Pixels: a panel is so wide and high, and so much is free around what is drawn in it."""
NAMES = 90
"""Pixels below the bars: the names of fleets."""
FLAT = 60
"""Pixels that a fleet must have for its name to be written flat; else it is slanted."""
COLOURS = ("steelblue", "firebrick", "seagreen", "darkorange", "purple", "dimgrey")
_PANELS: tuple[tuple[str, Callable[[Result], float]], ...] = (
    ("TTFT p90, s", lambda each: percentiles(each.figures.ttft).get("p90", 0.0)),
    ("ITL p90, ms", lambda each: 1000 * percentiles(each.figures.itl).get("p90", 0.0)),
    ("hit rate", lambda each: each.hit_rate),
    ("goodput, requests/s", lambda each: each.goodput),
)


def svg(results: Sequence[Result]) -> str:
    """Two rows of two panels. The fleets stand beside each other in the order of their replays."""
    drawn = [
        f'<g transform="translate({place % 2 * WIDTH} {place // 2 * HEIGHT})">'
        f"{''.join(_panel(title, value, results))}</g>"
        for place, (title, value) in enumerate(_PANELS)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{2 * HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def _panel(
    title: str, value: Callable[[Result], float], results: Sequence[Result]
) -> Iterator[str]:
    fleets = list(dict.fromkeys(each.fleet for each in results))
    policies = list(dict.fromkeys(each.policy for each in results))
    highest = max(map(value, results), default=0.0) or 1.0
    left, right, top, bottom = MARGIN, WIDTH - 8, MARGIN, HEIGHT - NAMES
    each_fleet = (right - left) / len(fleets)
    bar = 0.8 * each_fleet / len(policies)
    yield _text(WIDTH / 2, 18, title)
    for share in (0, 0.5, 1):
        y = bottom - share * (bottom - top)
        yield f'<path d="M{left} {y}H{right}" stroke="{"lightgrey" if share else "black"}"/>'
        yield _text(left - 6, y + 4, f"{share * highest:.3g}", "end")
    for place, policy in enumerate(policies):
        x = left + place * (right - left) / len(policies)
        yield _text(x, 40, policy, "start", COLOURS[place % len(COLOURS)])
    for place, fleet in enumerate(fleets):
        yield _fleet(left + (place + 0.5) * each_fleet, bottom + 18, fleet, each_fleet < FLAT)
    for result in results:
        place = policies.index(result.policy)
        x = left + (fleets.index(result.fleet) + 0.1) * each_fleet + place * bar
        height = value(result) / highest * (bottom - top)
        yield (
            f'<rect x="{x:.1f}" y="{bottom - height:.1f}" width="{bar:.1f}" '
            f'height="{height:.1f}" fill="{COLOURS[place % len(COLOURS)]}"/>'
        )


def _fleet(x: float, y: float, name: str, slanted: bool) -> str:
    """A fleet's name below its bars. Two neighbours' names must not lie on each other."""
    if not slanted:
        return _text(x, y, name)
    return f'<g transform="rotate(-30 {x:.1f} {y - 8:.1f})">{_text(x, y, name, "end")}</g>'


def _text(x: float, y: float, text: str, anchor: str = "middle", colour: str = "black") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"
