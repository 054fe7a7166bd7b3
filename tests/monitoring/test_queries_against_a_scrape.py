"""Every query of every dashboard and rule names metrics and labels that a running stack has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from watching import scrape

from monitoring.definitions import TARGET_LABELS, Catalogue
from monitoring.generate import OUTPUT
from monitoring.registries import families
from tandem.cli.stack import Stack

OWN = {
    "up": set(TARGET_LABELS),
    "ALERTS": {"alertname", "alertstate", "namespace", "job"},
    "tandem_tls_certificate_expiry_seconds": {"file"},  # has a series where TLS is used
}
INTERVAL = "1m"
GROUPINGS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")


def _dashboard_queries() -> Iterator[str]:
    for path in (OUTPUT / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield target["expr"].replace("$__rate_interval", INTERVAL)


def _rules(rules: dict[str, str]) -> Iterator[dict[str, Any]]:
    for text in rules.values():
        for group in yaml.safe_load(text)["groups"]:
            yield from group["rules"]


def _selectors(node: Any) -> Iterator[Any]:
    """All vector selectors below a parsed expression."""
    if isinstance(node, promql.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if (child := getattr(node, name, None)) is not None:
            yield from _selectors(child)
    for child in getattr(node, "args", None) or ():
        yield from _selectors(child)


def _scraped(stack: Stack) -> dict[str, set[str]]:
    """Labels by the name of each series."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scrape(stack)):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _unknown(query: str, series: dict[str, set[str]]) -> Iterator[str]:
    """What a query names that is not there."""
    selectors = list(_selectors(promql.parse(query)))
    assert selectors, f"no selector found in {query}"
    for selector in selectors:
        if selector.name not in series:
            yield selector.name
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in series[selector.name] | TARGET_LABELS:
                yield f"{selector.name}{{{matcher.name}}}"
    known = set[str]().union(*(series.get(each.name, set()) for each in selectors)) | TARGET_LABELS
    for grouping in GROUPINGS.findall(query):
        yield from ({label.strip() for label in grouping.split(",")} - known - {""})


@pytest.mark.promise("S5-130")
def test_every_metric_and_label_of_every_query_is_in_a_live_scrape(
    stack: Stack, rules: dict[str, str]
) -> None:
    series = _scraped(stack) | OWN
    expressions = list(_dashboard_queries())
    for rule in _rules(rules):
        expressions.append(rule["expr"])
        if "record" in rule:
            level = rule["record"].partition(":")[0]
            series[rule["record"]] = set(level.split("_"))
    assert len(expressions) > 150
    unknown = {name for query in expressions for name in _unknown(query, series)}
    assert unknown == set()


def test_the_definitions_are_those_of_a_live_scrape(stack: Stack) -> None:
    live = _scraped(stack)
    defined: dict[str, set[str]] = {}
    for definition in Catalogue(families()).definitions.values():
        for name in definition.series:
            bucket = {"le"} if name.endswith("_bucket") else set()
            defined[name] = set(definition.labels) | bucket
    ours = {name: labels for name, labels in live.items() if name.startswith("tandem_")}
    for name, labels in ours.items():
        assert defined.get(name) == labels, name
    assert {name for name in defined.keys() - live.keys() if name not in OWN} == set()
