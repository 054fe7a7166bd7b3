"""PromQL written short, checked against the catalogue and completed with the scope it runs in.

Expressions name metrics without namespace, job and pod; `Expressions.scoped` adds those matchers to
every selector. promql_parser reads them, so what is written here is what Prometheus understands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import promql_parser as promql

from monitoring.definitions import Catalogue

_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_STAND_INS = {
    "$__rate_interval": "54d5h4m3s",
    "@TTFT_OBJECTIVE@": "0.98765401",
    "@ITL_OBJECTIVE@": "0.98765402",
    "@AVAILABILITY_OBJECTIVE@": "0.98765403",
    "@START_SECONDS@": "98765404",
}
"""What Grafana and the chart fill in later is no PromQL: these are read in their place."""


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

        Raises UnknownMetricError, UnknownLabelError, and ValueError for what is no PromQL."""
        tree = parse(expression)
        self.check(tree)
        _check(_LEGEND.findall(legend), self._labels(tree), legend)
        text = promql.transform(tree, post_visit=self._with_scope).prettify()
        for placeholder, stand_in in _STAND_INS.items():
            text = text.replace(stand_in, placeholder)
        return Scoped(text, tuple(dict.fromkeys(_name(each) for each in selectors(tree))))

    def labels(self, expression: str) -> frozenset[str]:
        """All labels of the series that an expression names."""
        return self._labels(parse(expression))

    def check(self, tree: promql.Expr) -> None:
        """Raises UnknownMetricError, and UnknownLabelError for a label that is matched, grouped by
        or joined on where no series below it has it.
        """
        for node in nodes(tree):
            if isinstance(node, promql.VectorSelector):
                used = [matcher.name for matcher in node.matchers.matchers]
            elif isinstance(node, promql.AggregateExpr) and node.modifier:
                used = node.modifier.labels
            elif isinstance(node, promql.BinaryExpr) and node.modifier:
                matching = node.modifier.matching
                used = [*(matching.labels if matching else ()), *(node.modifier.group_labels or ())]
            else:
                continue
            _check(used, self._labels(node), node.prettify())

    def _labels(self, tree: promql.Expr) -> frozenset[str]:
        return frozenset().union(*(self.catalogue.labels(_name(each)) for each in selectors(tree)))

    def _with_scope(self, node: promql.Expr) -> promql.Expr | None:
        if not isinstance(node, promql.VectorSelector):
            return None
        name, known = _name(node), self.catalogue.labels(_name(node))
        scope = [matcher for label, matcher in self._scope.items() if label in known]
        own, _, rest = node.prettify().removeprefix(name).lstrip("{").rpartition("}")
        return parse(f"{name}{{{','.join(filter(None, (*scope, own)))}}}{rest}")


def parse(expression: str) -> promql.Expr:
    """Raises ValueError for what is no PromQL, placeholders aside."""
    for placeholder, stand_in in _STAND_INS.items():
        expression = expression.replace(placeholder, stand_in)
    return promql.parse(expression)


def nodes(tree: promql.Expr) -> list[promql.Expr]:
    """An expression and every expression below it."""
    found: list[promql.Expr] = []
    promql.walk(tree, found.append)
    return found


def selectors(tree: promql.Expr) -> list[promql.VectorSelector]:
    """What an expression reads: its metrics and labels."""
    return [node for node in nodes(tree) if isinstance(node, promql.VectorSelector)]


def _name(selector: promql.VectorSelector) -> str:
    """Raises ValueError for a selector of matchers alone: nobody could say which labels it has."""
    if not selector.name:
        raise ValueError(f"a selector names no metric: {selector.prettify()}")
    return selector.name


def _check(used: Collection[str], known: Collection[str], where: str) -> None:
    if unknown := set(used) - set(known):
        raise UnknownLabelError(f"{', '.join(sorted(unknown))} is no label of: {where}")
