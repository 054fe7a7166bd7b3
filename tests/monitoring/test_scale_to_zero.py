"""Workers that KEDA scales to nothing: what it asks Prometheus, and what their release expects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chart_renders
import pods
import pytest
import yaml
from watching import Tools, unit_test

from tandem_frontend import metrics as frontend_metrics

PHASES = ("prefill", "decode")
NOTHING: dict[str, Any] = {
    **{phase: {"autoscaling": {"type": "keda", "minReplicas": 0}} for phase in PHASES},
    "router": {"config": {"pair_wait_seconds": 600}},
    "monitoring": {"prometheusAddress": "http://prometheus:9090"},
}
OPEN = 'tandem_frontend_open_requests{namespace="tandem",pod="tandem-frontend-%s"}'
OTHER = 'tandem_frontend_open_requests{namespace="tandem",pod="other-frontend-x"}'
CASES: dict[str, tuple[dict[str, str], int | None]] = {
    # What is said every 15 s -> pods that are wanted after five minutes; None: nothing is known.
    "idle": ({OPEN % "a": "0x20", OPEN % "b": "0x20"}, 0),
    "one waits": ({OPEN % "a": "0x19 1", OPEN % "b": "0x20"}, 1),
    "many wait": ({OPEN % "a": "40x20", OPEN % "b": "60x20"}, 1),
    "one went between two looks": ({OPEN % "a": "0x16 1 0 0 0"}, 1),
    "one went long ago": ({OPEN % "a": "0x8 1 0x11"}, 0),
    "those of another release": ({OPEN % "a": "0x20", OTHER: "9x20"}, 0),
    "no frontend": ({}, None),
}


def trigger(phase: str) -> dict[str, str]:
    scalers = {
        each["metadata"]["name"]: each["spec"]
        for each in chart_renders.manifests(NOTHING)
        if each["kind"] == "ScaledObject"
    }
    assert scalers[f"tandem-{phase}"]["minReplicaCount"] == 0
    found: dict[str, str] = scalers[f"tandem-{phase}"]["triggers"][0]["metadata"]
    return found


@pytest.mark.promise("S5-316")
def test_a_pod_is_wanted_while_a_request_is_open_at_a_frontend(
    tools: Tools, tmp_path: Path
) -> None:
    """promtool names the file of each case that fails."""
    asked = {phase: trigger(phase) for phase in PHASES}
    assert {each["threshold"] for each in asked.values()} == {"1"}
    files = {
        f"{phase}, {case}.yaml": {
            "interval": "15s",
            "input_series": [{"series": name, "values": said} for name, said in series.items()],
            "promql_expr_test": [
                {
                    "expr": asked[phase]["query"],
                    "eval_time": "5m",
                    "exp_samples": [] if wanted is None else [{"labels": "{}", "value": wanted}],
                }
            ],
        }
        for phase in PHASES
        for case, (series, wanted) in CASES.items()
    }
    for name, test in files.items():
        (tmp_path / name).write_text(yaml.safe_dump({"tests": [test]}))
    unit_test(tools, tmp_path, files)


@pytest.mark.promise("S5-316")
def test_requests_wait_for_workers_that_are_started_for_them() -> None:
    def expected(values: dict[str, Any]) -> list[str]:
        return list(pods.of_values(values)["router"].settings.get("expected_models", []))

    assert expected(NOTHING) == ["tandem-tiny"]
    own = {"config": {"pair_wait_seconds": 600, "expected_models": ["tandem-tiny", "more"]}}
    assert expected({**NOTHING, "router": own}) == ["tandem-tiny", "more"]
    assert expected({}) == []


def test_the_metric_that_is_asked_for_exists() -> None:
    source = Path(frontend_metrics.__file__).read_text(encoding="utf-8")
    assert '"open_requests"' in source
