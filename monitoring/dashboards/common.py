"""Queries and panels that several dashboards show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from monitoring.panels import Panel, Query
from monitoring.queries import EVERY_REQUEST, FAILED_REQUEST, INTERVAL, quantile, rate, ratio

GOODPUT = ratio(
    rate('tandem_frontend_slo_requests_total{ttft="met",itl="met"}'), rate(EVERY_REQUEST)
)
ERROR_RATIO = ratio(rate(FAILED_REQUEST), rate(EVERY_REQUEST))
KV_BYTES = rate('tandem_kv_transfer_bytes_total{phase="decode"}')
TTFT, ITL, E2E = (f"tandem_frontend_{name}_seconds" for name in ("ttft", "itl", "request"))
_SHARES = (0.5, 0.9, 0.99)


def stat(title: str, expression: str, *, legend: str = "", **how: Any) -> Panel:
    """A panel that shows the present value as one figure."""
    defaults: dict[str, Any] = {"kind": "stat", "width": 4, "height": 4}
    return Panel(title=title, queries=[Query(expression, legend)], **(defaults | how))


GOODPUT_NOW = stat(
    "Goodput",
    GOODPUT,
    unit="percentunit",
    maximum=1,
    thresholds=[(0, "red"), (0.95, "orange"), (0.99, "green")],
    note="Share of requests that succeeded and met both latency objectives. Requests that failed by"
    " their client's doing are left out.",
)


def lines(title: str, *queries: str | tuple[str, str], **how: Any) -> Panel:
    """A panel of lines, one for each (expression, legend). An expression alone has the labels that
    it groups by for its legend.
    """
    pairs = [(each, _grouping(each)) if isinstance(each, str) else each for each in queries]
    return Panel(title=title, queries=[Query(*each) for each in pairs], **how)


def rates(title: str, counter: str, *, by: str, above_zero: bool = False, **how: Any) -> Panel:
    """A line of a counter's rate for each group of labels; `above_zero`: where there is any."""
    expression = rate(counter, by=by) + (" > 0" if above_zero else "")
    return lines(title, expression, **({"unit": "cps"} | how))


def shares(title: str, *queries: str | tuple[str, str], **how: Any) -> Panel:
    """Lines from 0 to 100 %."""
    return lines(title, *queries, unit="percentunit", maximum=1, **how)


def table(title: str, expression: str, **how: Any) -> Panel:
    """A row for each series, with its labels."""
    return Panel(title=title, queries=[Query(expression)], kind="table", minimum=None, **how)


def _grouping(expression: str) -> str:
    by = re.search(r"\bby \(([^)]*)\)", expression)
    return "" if by is None else " ".join(f"{{{{{label}}}}}" for label in by[1].split(", "))


def percentiles(
    title: str,
    histogram: str,
    *,
    by: str = "",
    shares: Sequence[float] = _SHARES,
    more: Sequence[tuple[str, str]] = (),
    **how: Any,
) -> Panel:
    """Each share's curve; `by` one label splits each of them. `more`: further curves."""
    name = f" {{{{{by}}}}}" if by else ""
    queries = [(quantile(share, histogram, by=by), f"p{share * 100:g}{name}") for share in shares]
    return lines(title, *queries, *more, unit="s", exemplars=True, **how)


def heatmap(title: str, histogram: str, **how: Any) -> Panel:
    """Observations by size over time."""
    name, brace, matchers = histogram.partition("{")
    expression = f"sum by (le) (increase({name}_bucket{brace}{matchers}[{INTERVAL}]))"
    return Panel(
        title=title,
        queries=[Query(expression, "{{le}}")],
        kind="heatmap",
        unit="s",
        minimum=None,
        **how,
    )
