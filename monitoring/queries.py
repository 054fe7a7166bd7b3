"""PromQL that dashboards and rules say often."""

from __future__ import annotations

INTERVAL = "$__rate_interval"
_GENERATING = 'endpoint=~"chat_completions|completions"'
EVERY_REQUEST = f'tandem_frontend_requests_total{{{_GENERATING},fault!="client"}}'
"""Requests that want tokens. One that its client spoiled says nothing of the service."""
FAILED_REQUEST = f'tandem_frontend_requests_total{{{_GENERATING},fault="server"}}'


def rate(series: str, *, by: str = "", over: str = INTERVAL) -> str:
    """A counter's rate each second, summed. `series` may have matchers."""
    return f"sum{_by(by)} (rate({series}[{over}]))"


def total(series: str, *, by: str = "") -> str:
    return f"sum{_by(by)} ({series})"


def quantile(share: float, histogram: str, *, by: str = "", over: str = INTERVAL) -> str:
    """The expression for a quantile of a histogram.

    The histogram is named without `_bucket`; matchers may follow its name."""
    name, brace, matchers = histogram.partition("{")
    labels = f"{by}, le" if by else "le"
    inner = rate(f"{name}_bucket{brace}{matchers}", by=labels, over=over)
    return f"histogram_quantile({share}, {inner})"


def ratio(part: str, whole: str) -> str:
    """NaN where both are 0: then nothing is drawn, and no alert fires."""
    return f"({part}) / ({whole})"


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
