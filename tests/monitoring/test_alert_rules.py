"""Each alert fires when it should and does not in a near miss, as Prometheus itself evaluates it.

The cases are in rules/*.yaml, written to be read; this turns them into promtool's form.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from watching import UNIT_TEST_SECONDS, Tools, unit_test

from monitoring.alerts import ALERTS

RELEASE = {"namespace": "default", "job": "tandem"}
TIMEOUT = 120
CASES: list[dict[str, Any]] = [
    case
    for path in sorted((Path(__file__).parent / "rules").glob("*.yaml"))
    for case in yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
]


def test_rules_are_valid_for_prometheus(
    tools: Tools, rules: dict[str, str], tmp_path: Path
) -> None:
    for name, text in rules.items():
        (tmp_path / name).write_text(text)
    command = [str(tools.promtool), "check", "rules", *(str(tmp_path / name) for name in rules)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == 2


def test_every_alert_has_a_case_that_fires_and_a_near_miss() -> None:
    assert [case["alert"] for case in CASES if not (case["fires"] and case["silent"])] == []
    assert {case["alert"] for case in CASES} == {alert.name for alert in ALERTS}


def test_every_window_of_a_burn_fires_somewhere() -> None:
    windows: dict[str, set[str]] = {}
    for case in CASES:
        fired = {label.get("long_window", "") for each in case["fires"] for label in each["labels"]}
        windows[case["alert"]] = fired
    for alert in ALERTS:
        assert alert.labels.get("long_window", "") in windows[alert.name], alert


def test_values_are_as_promtool_reads_them() -> None:
    """YAML takes 0x10 for a number: sixteen."""
    for case in CASES:
        for each in (*case["fires"], *case["silent"]):
            assert all(isinstance(values, str) for values in each["series"].values()), each["why"]


@pytest.mark.promise("S5-129")
@pytest.mark.timeout(UNIT_TEST_SECONDS + 60)
def test_an_alert_fires_and_does_not_in_a_near_miss(
    tools: Tools, rules: dict[str, str], tmp_path: Path
) -> None:
    """promtool names each case that fails, by its alert and its `why`."""
    for case in CASES:
        alert = case["alert"]
        (tmp_path / f"{alert}.rules").write_text(_narrowed(rules.values(), alert))
        document = {
            "rule_files": [f"{alert}.rules"],
            "evaluation_interval": "1m",
            "tests": [
                *(_promtool_case(alert, each, _too_early(alert)) for each in case["fires"]),
                *(_promtool_case(alert, each) for each in case["silent"]),
            ],
        }
        (tmp_path / f"{alert}.yaml").write_text(yaml.safe_dump(document))
    unit_test(tools, tmp_path, [f"{case['alert']}.yaml" for case in CASES])


def _too_early(alert: str) -> list[dict[str, Any]]:
    """What is seen a minute before an alert may fire: nothing."""
    wait = min(_minutes(each.after) for each in ALERTS if each.name == alert)
    return [_seen(alert, f"{wait - 1}m")] if wait > 1 else []


def _minutes(duration: str) -> int:
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def _promtool_case(
    alert: str, case: dict[str, Any], before: Iterable[dict[str, Any]] = ()
) -> dict[str, Any]:
    place = ",".join(f'{name}="{value}"' for name, value in RELEASE.items())
    return {
        "name": f"{alert}: {case['why']}",
        "interval": "1m",
        "input_series": [
            {"series": series.replace("{", f"{{{place},"), "values": str(values)}
            for series, values in case["series"].items()
        ],
        "alert_rule_test": [*before, _seen(alert, case["at"], case.get("labels", ()))],
    }


def _seen(alert: str, at: str, labels: Iterable[dict[str, str | None]] = ()) -> dict[str, Any]:
    """The alerts that fire at a time, by their labels."""
    fires = [{"exp_labels": _expected(each)} for each in labels]
    return {"eval_time": at, "alertname": alert, "exp_alerts": fires}


def _expected(labels: dict[str, str | None]) -> dict[str, str]:
    """Labels of a case with those of the release, but for one that the alert has not: null."""
    return {name: value for name, value in (RELEASE | labels).items() if value is not None}


def _narrowed(texts: Iterable[str], alert: str) -> str:
    """One alert and what it needs recorded. Without annotations: promtool would want them written
    out for each case, and `check rules` has parsed them.
    """
    groups = [group for text in texts for group in yaml.safe_load(text)["groups"]]
    rules = [rule for group in groups for rule in group["rules"]]
    alerts = [rule | {"annotations": {}} for rule in rules if rule.get("alert") == alert]
    read = " ".join(rule["expr"] for rule in alerts)
    recorded = [rule for rule in rules if "record" in rule and f"{rule['record']}{{" in read]
    return yaml.safe_dump({"groups": [{"name": "any", "rules": [*recorded, *alerts]}]})
