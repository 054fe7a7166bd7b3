"""How TTFT and ITL are distributed, as an SVG: the share of answers that had it within a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tandem_tools.bench.figures import Figures

WIDTH, HEIGHT, MARGIN = 420, 260, 48
"""Pixels: a panel is so wide and high, and so much is free around what is drawn in it."""
POINTS = 400
"""More points of a line cannot be told apart at this width."""


def svg(figures: Figures) -> str:
    """Two panels beside each other. A dashed line is an objective that an answer missed."""
    panels = (
        ("TTFT of answers", figures.ttft, figures.slo.ttft_seconds),
        ("ITL, mean of each request", figures.itl, figures.slo.itl_seconds),
    )
    drawn = [
        f'<g transform="translate({place * WIDTH} 0)">{"".join(_panel(*panel))}</g>'
        for place, panel in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(drawn)}</svg>\n'
    )


def _panel(title: str, values: Sequence[float], objective: float) -> Iterator[str]:
    """`values` are sorted. The axis reaches to the slowest; an objective beyond it is not drawn."""
    longest = values[-1] if values else objective
    left, right, top, bottom = MARGIN, WIDTH - MARGIN, MARGIN, HEIGHT - MARGIN

    def x(seconds: float) -> float:
        return left + seconds / longest * (right - left)

    def y(share: float) -> float:
        return bottom - share * (bottom - top)

    yield _text(WIDTH / 2, MARGIN / 2, title)
    yield f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="black"/>'
    for share in (0, 0.5, 1):
        yield _text(left - 22, y(share) + 4, f"{share:.0%}")
    for seconds in (0, longest / 2, longest):
        yield _text(x(seconds), bottom + 18, f"{seconds * 1000:.4g} ms")
    if objective <= longest:
        dashed = 'stroke="firebrick" stroke-dasharray="4"'
        yield f'<path d="M{x(objective):.1f} {top}V{bottom}" fill="none" {dashed}/>'
    if values:
        ranks = sorted({round(i * (len(values) - 1) / POINTS) for i in range(POINTS + 1)})
        line = " ".join(
            f"{x(values[rank]):.1f},{y((rank + 1) / len(values)):.1f}" for rank in ranks
        )
        yield f'<polyline points="{line}" fill="none" stroke="steelblue" stroke-width="2"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'
