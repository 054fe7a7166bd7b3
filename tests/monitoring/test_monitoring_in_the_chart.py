"""What the chart puts into a cluster is what was generated, and Prometheus takes it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import chart_renders
import pytest
import yaml
from watching import Tools

from monitoring.alerts import ALERTS
from monitoring.generate import OUTPUT

RDMA_ONLY = {"TandemKvOverTcp"}
TIMEOUT = 60


@pytest.fixture(scope="module")
def objects() -> dict[str, list[dict[str, Any]]]:
    """By kind, with all of monitoring switched on."""
    enabled = {"enabled": True}
    monitoring = {"prometheusRule": enabled, "podMonitor": enabled, "dashboards": enabled}
    found: dict[str, list[dict[str, Any]]] = {}
    policy = {"metricsFrom": [{"namespaceSelector": {"matchLabels": {"prometheus": "here"}}}]}
    for each in chart_renders.manifests({"monitoring": monitoring, "networkPolicy": policy}):
        found.setdefault(each["kind"], []).append(each)
    return found


def test_prometheus_takes_the_rules_that_the_chart_renders(
    objects: dict[str, list[dict[str, Any]]], tools: Tools, tmp_path: Path
) -> None:
    (rule,) = objects["PrometheusRule"]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    command = [str(tools.promtool), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules = [each for group in rule["spec"]["groups"] for each in group["rules"]]
    alerts = {each["alert"] for each in rules if "alert" in each}
    assert alerts == {alert.name for alert in ALERTS} - RDMA_ONLY
    namespace, job = f'namespace="{chart_renders.NAMESPACE}"', f'job="{chart_renders.RELEASE}"'
    for expression in (each["expr"] for each in rules):
        of_others = expression.count("kube_pod_")
        assert expression.count(namespace) == expression.count(job) + of_others > 0
        assert expression.count("job=") == expression.count(job)
        assert expression.count('pod=~"tandem-(frontend|') == of_others


@pytest.mark.promise("S6-501")
@pytest.mark.parametrize(
    ("tls", "watched"), [({}, True), ({"enabled": False}, False), ({"existingSecret": "s"}, False)]
)
def test_certificates_are_watched_where_the_chart_makes_them(
    tls: dict[str, Any], watched: bool
) -> None:
    values = {"tls": tls, "monitoring": {"prometheusRule": {"enabled": True}}}
    text = chart_renders.texts(values)["tandem/templates/prometheusrule.yaml"]
    assert ("TandemCertificatesNotKept" in text) is watched


@pytest.mark.promise("S5-504")
def test_a_long_start_is_measured_by_the_longest_that_the_chart_allows() -> None:
    values = {
        "decode": {"startupSeconds": 4000},
        "monitoring": {"prometheusRule": {"enabled": True}},
    }
    text = chart_renders.texts(values)["tandem/templates/prometheusrule.yaml"]
    assert "> 0.5 * 4000" in " ".join(text.split())


def test_the_series_of_a_pod_get_the_release_as_their_job(
    objects: dict[str, list[dict[str, Any]]],
) -> None:
    (monitor,) = objects["PodMonitor"]
    assert monitor["spec"]["jobLabel"] == "app.kubernetes.io/instance"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("metrics", "/metrics")


def test_every_dashboard_is_in_a_config_map_as_it_was_generated(
    objects: dict[str, list[dict[str, Any]]],
) -> None:
    shipped = [
        json.loads(text)
        for each in objects["ConfigMap"]
        if "dashboard" in each["metadata"]["name"]
        for text in each["data"].values()
    ]
    generated = [json.loads(path.read_text()) for path in (OUTPUT / "dashboards").glob("*.json")]
    assert sorted(shipped, key=_uid) == sorted(generated, key=_uid)


def _uid(dashboard: dict[str, Any]) -> str:
    return str(dashboard["uid"])
