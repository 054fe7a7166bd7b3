"""What replays found, as an SVG: for each figure a panel, with a line for each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from xml.sax.saxutils import escape

from tandem.cli.bench.figures import percentiles
from trace_replay.results import Result

WIDTH, HEIGHT, MARGIN = 420, 280, 56
"""Pixels: a panel is so wide and high, and so much is free around what is drawn in it."""
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
    left, right, top, bottom = MARGIN, WIDTH - 8, MARGIN, HEIGHT - MARGIN

    def x(fleet: str) -> float:
        return left + (fleets.index(fleet) + 0.5) * (right - left) / len(fleets)

    def y(result: Result) -> float:
        return bottom - value(result) / highest * (bottom - top)

    yield _text(WIDTH / 2, 18, title)
    yield f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="black"/>'
    for share in (0, 0.5, 1):
        yield _text(left - 6, bottom - share * (bottom - top) + 4, f"{share * highest:.3g}", "end")
    for fleet in fleets:
        yield _text(x(fleet), bottom + 18, fleet)
    for place, policy in enumerate(policies):
        colour = COLOURS[place % len(COLOURS)]
        mine = [each for each in results if each.policy == policy]
        yield _text(left + place * 110 + 8, 40, policy, "start", colour)
        line = " ".join(f"{x(each.fleet):.1f},{y(each):.1f}" for each in mine)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for each in mine:
            yield f'<circle cx="{x(each.fleet):.1f}" cy="{y(each):.1f}" r="3" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", colour: str = "black") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f"<text {place}>{escape(text)}</text>"
