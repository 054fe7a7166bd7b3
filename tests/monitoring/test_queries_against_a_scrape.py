"""Every query of every dashboard and rule names metrics and labels that a running stack has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from watching import scrape

from monitoring.definitions import TARGET_LABELS, Catalogue
from monitoring.expressions import Expressions, parse
from monitoring.generate import OUTPUT
from monitoring.registries import families
from tandem.cli.stack import Stack

ONLY_WITH_TLS = {"tandem_tls_certificate_expiry_seconds": {"file"}}
ONLY_WHERE_CERTIFICATES_ARE_MADE: dict[str, set[str]] = {"tandem_certificates_kept": set()}
ONLY_WITH_KEYS = {
    "tandem_frontend_key_requests": {"key", "outcome"},
    "tandem_frontend_key_tokens": {"key", "kind"},
    "tandem_frontend_key_open_requests": {"key"},
}
ONLY_WITH_DRAFTS = {"tandem_engine_accept_length": {"phase", "rank"}}
ONLY_WITH_UNITS = {"tandem_engine_unit": {"phase", "unit", "state"}}
NOT_SHOWN = {
    **ONLY_WITH_TLS,
    **ONLY_WHERE_CERTIFICATES_ARE_MADE,
    **ONLY_WITH_KEYS,
    **ONLY_WITH_DRAFTS,
    **ONLY_WITH_UNITS,
}


def _dashboard_queries() -> Iterator[str]:
    for path in (OUTPUT / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield target["expr"]


def _rules(rules: dict[str, str]) -> Iterator[dict[str, Any]]:
    for text in rules.values():
        for group in yaml.safe_load(text)["groups"]:
            yield from group["rules"]


def _scraped(stack: Stack) -> Catalogue:
    """What a running stack shows."""
    families = text_string_to_metric_families(scrape(stack))
    live = Catalogue(family for family in families if family.samples)
    for name, labels in NOT_SHOWN.items():
        live.record(name, labels | TARGET_LABELS)
    return live


@pytest.mark.promise("S5-130")
def test_every_metric_and_label_of_every_query_is_in_a_live_scrape(
    stack: Stack, rules: dict[str, str]
) -> None:
    live = _scraped(stack)
    queries = list(_dashboard_queries())
    for rule in _rules(rules):
        queries.append(rule["expr"])
        if "record" in rule:
            level = rule["record"].partition(":")[0]
            live.record(rule["record"], level.split("_"))
    assert len(queries) > 150
    for query in queries:
        Expressions(live, {}).check(parse(query))


def test_the_definitions_are_those_of_a_live_scrape(stack: Stack) -> None:
    live, defined = _scraped(stack).definitions, Catalogue(families()).definitions
    for name in live:
        if name.startswith("tandem_"):
            assert defined[name].labels == live[name].labels, name
    assert defined.keys() - live.keys() <= NOT_SHOWN.keys()
