"""Figures of two stacks that stand side by side and are measured in turn, several rounds of each,
in changing order.

A figure is the median of its rounds, and what the second stack costs more is the ratio in a round.
The first is measured twice a round, so that its difference to itself says how much the machine
alone moves a figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

Cost = Callable[[], float]


def header(plain: str, other: str) -> str:
    """The head of a table of both stacks by these names, for rows of `row`."""
    return f"{'':<26} {plain:>8} {other:>8} {'ratio':>8} {'spread':>8}   each round"


def row(name: str, plain: Cost, other: Cost, *, rounds: int) -> str:
    """Measures one figure of both, and returns its row."""
    found = [_round(plain, other, plain_first=number % 2 == 0) for number in range(rounds)]
    old, new = (statistics.median(column) for column in list(zip(*found, strict=True))[:2])
    ratios = [new / ((first + again) / 2) for first, new, again in found]
    spread = max(abs(again / first - 1) for first, _, again in found)
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    return (
        f"{name:<26} {old:8.1f} {new:8.1f} {statistics.median(ratios):8.3f} {spread:8.1%}   {each}"
    )


def _round(plain: Cost, other: Cost, *, plain_first: bool) -> tuple[float, float, float]:
    """The first stack's figure, the second's, and the first's again."""
    if plain_first:
        return plain(), other(), plain()
    new = other()
    return plain(), new, plain()
