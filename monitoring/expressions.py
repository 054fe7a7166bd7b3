"""PromQL written short, checked against the catalogue and completed with the scope it runs in.

Expressions name metrics without namespace, job and pod; `Expressions.scoped` adds those matchers to
every selector. This reads only what it must: names of metrics, their matchers, and the labels of
`by`, `on` and the like. The tests parse the results in full.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from monitoring.definitions import Catalogue

_SELECTOR = re.compile(
    r"(?<![\w:.\"])(?P<name>(?:tandem|process)_\w+|[a-z_]+:[\w:]+|up|ALERTS)\b"
    r"(?!\()(?:\{(?P<matchers>[^}]*)\})?"
)
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class UnknownLabelError(Exception):
    """A query names a label that its metrics do not have."""


@dataclass(slots=True, frozen=True)
class Scoped:
    """A checked expression, ready to run, and the series it reads."""

    text: str
    series: tuple[str, ...]


class Expressions:
    """Checks and completes. `scope` has a matcher by label, such as `job="a"` by "job"; a series
    without the label goes without its matcher.
    """

    def __init__(self, catalogue: Catalogue, scope: Mapping[str, str]) -> None:
        self.catalogue = catalogue
        self._scope = scope

    def scoped(self, expression: str, *, legend: str = "") -> Scoped:
        """An expression with the scope's matchers added to each of its metrics.

        Raises UnknownMetricError and UnknownLabelError."""
        series: dict[str, None] = {}
        labels: set[str] = set()

        def complete(match: re.Match[str]) -> str:
            name, matchers = match["name"], match["matchers"] or ""
            known = self.catalogue.labels(name)
            _check(set(_MATCHER.findall(matchers)), known, expression)
            series[name] = None
            labels.update(known)
            scope = [text for label, text in self._scope.items() if label in known]
            return f"{name}{{{','.join(filter(None, (*scope, matchers)))}}}"

        text = _SELECTOR.sub(complete, expression.strip())
        grouped = {
            name.strip() for names in _GROUPING.findall(expression) for name in names.split(",")
        }
        _check(grouped - {""}, labels, expression)
        _check(set(_LEGEND.findall(legend)), labels, legend)
        return Scoped(text, tuple(series))

    def labels(self, expression: str) -> frozenset[str]:
        """All labels of the series that an expression names."""
        names = [match["name"] for match in _SELECTOR.finditer(expression)]
        return frozenset().union(*(self.catalogue.labels(name) for name in names))


def _check(used: set[str], known: set[str] | frozenset[str], where: str) -> None:
    if unknown := used - known:
        raise UnknownLabelError(f"{', '.join(sorted(unknown))} is no label of: {where}")
