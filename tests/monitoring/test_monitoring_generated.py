"""The generated dashboards and rules: up to date, complete, and impossible to make of what is not
there.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from one_case import one_case

from monitoring import dashboard, recording, rules
from monitoring.alerts import ALERTS
from monitoring.dashboard import Dashboard, PanelRow
from monitoring.dashboards import DASHBOARDS
from monitoring.definitions import Catalogue, UnknownMetricError
from monitoring.expressions import Expressions, UnknownLabelError, parse, selectors
from monitoring.generate import OUTPUT, files
from monitoring.panels import Panel, Query
from monitoring.registries import families
from tandem_tools.monitoring.release import MonitoredRelease, placeholder

ROOT = OUTPUT.parents[1]
RUNBOOKS = ROOT / "docs" / "runbooks"
UIDS = {
    "tandem-overview",
    "tandem-latency",
    "tandem-disaggregation",
    "tandem-hooks",
    "tandem-router",
    "tandem-rollout",
}
"""Links that people keep: never changed."""
COLUMNS = 24
MAX_BYTES = 1024 * 1024
"""Of a ConfigMap."""


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue(families())


@pytest.fixture(scope="module")
def recorded(catalogue: Catalogue) -> Catalogue:
    """With the series that rules record."""
    rules.write(recording.GROUPS, catalogue)
    return catalogue


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (OUTPUT / "dashboards").glob("*.json")]


def _render(catalogue: Catalogue, *queries: Query) -> dict[str, Any]:
    panel = Panel(title="any", queries=queries)
    row = PanelRow("any", panel)
    return dashboard.render(
        Dashboard(name="any", title="any", description="any", rows=[row]), catalogue
    )


# --- generation ----------------------------------------------------------------------------------


def test_what_is_written_is_what_would_be_written_now() -> None:
    made = files()
    assert {path.name for path in made if path.read_text() != made[path]} == set()
    written = {*(OUTPUT / "dashboards").iterdir(), *(OUTPUT / "rules").iterdir()}
    assert written == made.keys()


def test_a_panel_of_an_unknown_metric_cannot_be_made(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownMetricError, match="tandem_router_queue_lenght"):
        _render(catalogue, Query("max(tandem_router_queue_lenght)"))


@pytest.mark.parametrize(
    ("expression", "legend"),
    [
        ('sum (tandem_worker_ready{fase="decode"})', ""),
        ("sum by (fase) (tandem_worker_ready)", ""),
        ("tandem_worker_ready unless on (fase) tandem_worker_draining", ""),
        ("tandem_worker_ready * on (phase) group_left (fase) tandem_worker_draining", ""),
        ("sum by (fase) (up) + on () tandem_hook_seconds_count{fase='x'}", ""),
        ("tandem_worker_ready", "{{fase}}"),
    ],
)
def test_a_panel_of_an_unknown_label_cannot_be_made(
    catalogue: Catalogue, expression: str, legend: str
) -> None:
    with pytest.raises(UnknownLabelError, match="fase"):
        _render(catalogue, Query(expression, legend))


def test_a_label_must_be_one_of_the_series_below_it(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownLabelError, match="phase"):
        _render(
            catalogue, Query("sum by (phase) (tandem_router_retries_total) + tandem_worker_ready")
        )


@one_case(
    "expression",
    [
        "sum by (phase) (tandem_worker_ready",
        "rate(tandem_worker_tokens_total)",
        "tandem_worker_ready{phase=decode}",
        "tandem_worker_ready >> 1",
        '{phase="decode"}',
        "tandem_worker_ready > $threshold",
    ],
)
def test_what_is_no_promql_cannot_be_made(catalogue: Catalogue, expression: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        _render(catalogue, Query(expression))


def test_a_metric_of_any_name_must_be_known(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownMetricError, match="go_goroutines"):
        _render(catalogue, Query("max(go_goroutines)"))


def test_every_selector_gets_the_scope_that_its_series_has(catalogue: Catalogue) -> None:
    scope = {"job": 'job="a"', "pod": 'pod="b"'}
    catalogue.record("namespace_job:some:rate5m", ("namespace", "job"))
    scoped = Expressions(catalogue, scope).scoped
    assert scoped('rate(tandem_worker_tokens_total{phase="decode"}[5m])').text == (
        'rate(tandem_worker_tokens_total{job="a",phase="decode",pod="b"}[5m])'
    )
    assert scoped("namespace_job:some:rate5m > 1").text == 'namespace_job:some:rate5m{job="a"} > 1'
    assert scoped("up == 0").text == 'up{job="a",pod="b"} == 0'
    assert scoped('up{pod="}{"} offset 5m').text == 'up{job="a",pod="b",pod="}{"} offset 5m'
    assert (
        scoped("rate(up[$__rate_interval])").text == 'rate(up{job="a",pod="b"}[$__rate_interval])'
    )


def test_an_alert_cannot_name_a_label_that_it_does_not_have(catalogue: Catalogue) -> None:
    alert = rules.Alert(
        name="TandemAny",
        severity="warning",
        after="1m",
        summary="{{ $labels.fase }}",
        description="any",
        expression="tandem_worker_ready == 0",
    )
    with pytest.raises(UnknownLabelError, match="fase"):
        rules.write([rules.RuleGroup("any", [alert])], catalogue)


def test_a_family_without_a_sample_is_refused() -> None:
    class Silent:
        name, type, documentation = "tandem_silent", "gauge", ""
        samples: tuple[()] = ()

    with pytest.raises(ValueError, match="tandem_silent"):
        Catalogue([Silent()])  # type: ignore[list-item]


# --- dashboards ----------------------------------------------------------------------------------


def test_dashboards_keep_their_uids_and_fit_into_a_config_map(
    documents: list[dict[str, Any]],
) -> None:
    assert {each["uid"] for each in documents} == UIDS == {each.uid for each in DASHBOARDS}
    assert all(len(json.dumps(each)) < MAX_BYTES / 4 for each in documents)


def test_panels_are_numbered_and_do_not_overlap(documents: list[dict[str, Any]]) -> None:
    for document in documents:
        panels = document["panels"]
        numbers = [panel["id"] for panel in panels]
        assert len(set(numbers)) == len(numbers)
        cells = [
            (document["uid"], x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert all(x < COLUMNS for _, x, _ in cells)


def test_every_panel_asks_the_chosen_data_source_and_says_what_it_shows(
    documents: list[dict[str, Any]],
) -> None:
    panels = [each for doc in documents for each in doc["panels"] if each["type"] != "row"]
    assert len(panels) > 80
    for panel in panels:
        assert panel["description"], panel["title"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            if "[" in target["expr"]:
                assert re.search(r"\[(\$__rate_interval|1h)\]", target["expr"]), target["expr"]


@pytest.mark.promise("S5-508")
def test_a_release_is_chosen_by_what_every_component_has(documents: list[dict[str, Any]]) -> None:
    """One without frontends serves a model to those of another release."""
    for document in documents:
        by_name = {each["name"]: each for each in document["templating"]["list"]}
        assert by_name["model"]["allValue"] == ".*"  # a series without the label matches too
        query = by_name["job"]["query"]["query"]
        (names,) = re.findall(r'__name__=~"([^"]*)"', query)
        for name in ("tandem_build_info", "tandem_worker_served_model_info"):
            assert re.fullmatch(names, name)
        (models,) = re.findall(r'__name__=~"([^"]*)"', by_name["model"]["query"]["query"])
        assert re.fullmatch(models, "tandem_worker_served_model_info")
        assert re.fullmatch(models, "tandem_frontend_served_model_info")


def test_every_panel_can_be_narrowed_to_a_release(documents: list[dict[str, Any]]) -> None:
    names = ["datasource", "namespace", "model", "job", "pod"]
    for document in documents:
        assert [each["name"] for each in document["templating"]["list"]] == names
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                selectors = re.findall(r"\{[^}]*\}", target["expr"])
                assert selectors, target["expr"]
                assert all('job=~"$job"' in each for each in selectors), target["expr"]


# --- alerts --------------------------------------------------------------------------------------


def test_every_rule_is_of_its_release_alone() -> None:
    for path in (OUTPUT / "rules").glob("*.yaml"):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                for selector in selectors(parse(rule["expr"])):
                    matchers = {str(each) for each in selector.matchers.matchers}
                    assert 'namespace="@NAMESPACE@"' in matchers
                    if str(selector.name).startswith("kube_"):  # of kube-state-metrics, for all
                        assert any(each.startswith('pod=~"@PODS@-(') for each in matchers)
                    else:
                        assert 'job="@JOB@"' in matchers


def test_every_alert_has_a_severity_and_a_page() -> None:
    pages = {path.name for path in RUNBOOKS.glob("tandem-*.md")}
    assert {alert.runbook for alert in ALERTS} == pages
    index = (RUNBOOKS / "README.md").read_text()
    for alert in ALERTS:
        assert (RUNBOOKS / alert.runbook).read_text().startswith(f"# {alert.name}\n")
        assert f"[{alert.name}]({alert.runbook})" in index
        assert len(alert.summary) < 140, alert.name


def test_critical_alerts_wait_less_than_ten_minutes_unless_they_look_at_hours() -> None:
    for alert in ALERTS:
        minutes = int(alert.after[:-1]) * (60 if alert.after.endswith("h") else 1)
        if alert.severity == "critical" and not alert.labels:
            assert minutes <= 10, alert.name


@one_case("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: str(page.stem))
def test_queries_and_links_of_a_runbook_hold(page: Path, recorded: Catalogue) -> None:
    text = page.read_text()
    expressions = Expressions(recorded, {})
    for block in re.findall(r"```promql\n(.*?)```", text, re.DOTALL):
        for query in block.splitlines():
            expressions.scoped(query)
    for target in re.findall(r"\]\((tandem-[^)]*)\)", text):
        assert (RUNBOOKS / target).exists(), target
    if page.name != "README.md":
        headings = [line for line in text.splitlines() if line.startswith("## ")]
        assert headings == ["## See it", "## What to do"]


def test_placeholders_of_rules_are_those_that_the_chart_knows() -> None:
    found = set(
        itertools.chain.from_iterable(
            re.findall(r"@[A-Z_]+@", path.read_text()) for path in (OUTPUT / "rules").glob("*.yaml")
        )
    )
    assert found == {placeholder(each) for each in MonitoredRelease.__dataclass_fields__}
    chart = (OUTPUT / "templates" / "prometheusrule.yaml").read_text()
    assert set(re.findall(r'replace "(@[A-Z_]+@)"', chart)) == found
