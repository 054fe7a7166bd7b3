"""How TTFT and ITL are distributed, as an SVG: the share of answers that had it within a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tandem_tools import drawing
from tandem_tools.bench.figures import Figures

WIDTH, HEIGHT, MARGIN = 420, 260, 48
"""Pixels: a panel is so wide and high, and so much is free around what is drawn in it."""
POINTS = 400
"""More points of a line cannot be told apart at this width."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


def svg(figures: Figures, *, title: str, parameters: Sequence[str]) -> str:
    """A panel for each of TTFT and ITL that answers had, beside each other. A dashed line is the
    objective.
    """
    panels = (
        ("TTFT of answers", figures.ttft, figures.slo.ttft_seconds),
        ("ITL, mean of each answer", figures.itl, figures.slo.itl_seconds),
    )
    drawn = ["".join(_panel(*panel)) for panel in panels if panel[1]]
    return drawing.picture(title, parameters, drawn, WIDTH, HEIGHT)


def _panel(title: str, values: Sequence[float], objective: float) -> Iterator[str]:
    """`values` are sorted. Times are on a logarithmic axis, which reaches to the objective."""
    axis = drawing.axis((*values, objective), logarithmic=True)
    left, right, top, bottom = MARGIN, WIDTH - MARGIN, MARGIN, HEIGHT - MARGIN

    def x(seconds: float) -> float:
        return left + axis.place(seconds) * (right - left)

    def y(share: float) -> float:
        return bottom - share * (bottom - top)

    yield drawing.text(WIDTH / 2, MARGIN / 2, f"{title}: share within a time")
    for share in SHARES:
        yield drawing.line(f"M{left} {y(share)}H{right}", "lightgrey")
        yield drawing.text(left - 6, y(share) + 4, f"{share:.0%}", "end")
    every = 1 + (len(axis.ticks) - 1) // 6  # words of more ticks would lie on each other
    for place, seconds in enumerate(axis.ticks):
        yield drawing.line(f"M{x(seconds):.1f} {bottom}v4")
        if place % every == 0:
            yield drawing.text(x(seconds), bottom + 18, drawing.seconds(seconds))
    yield drawing.line(f"M{left} {top}V{bottom}H{right}")
    yield drawing.line(f"M{x(objective):.1f} {top}V{bottom}", drawing.OBJECTIVE, dashed=True)
    said = f"SLO {drawing.seconds(objective)}"
    yield drawing.text(x(objective), top - 6, said, colour=drawing.OBJECTIVE)
    ranks = sorted({round(i * (len(values) - 1) / POINTS) for i in range(POINTS + 1)})
    points = " ".join(f"{x(values[rank]):.1f},{y((rank + 1) / len(values)):.1f}" for rank in ranks)
    yield f'<polyline points="{points}" fill="none" stroke="steelblue" stroke-width="2"/>'
