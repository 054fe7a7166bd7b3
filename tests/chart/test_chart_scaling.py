"""Who decides how many pods a component has: the chart where it declares a number, and else others,
whom no upgrade, rollback or switch to autoscaling may cross.
"""

from __future__ import annotations

import json
from typing import Any

import chart_renders
import pods
import pytest
from chart_renders import Manifest
from one_case import one_case

COMPONENTS = ("frontend", "router", "prefill", "decode")
HPA = {"autoscaling": {"type": "hpa", "targetCPUUtilization": 50}}
MARK = "tandem/replicas"
NODES = {"workload": {"nodes": 2}}
SGLANG = {"model": {"uri": "pvc://m"}, "engine": {"tensorParallel": 2}}


def workload(component: str, values: dict[str, Any]) -> Manifest:
    (found,) = (
        each
        for each in chart_renders.manifests(values)
        if each["kind"] in ("Deployment", "LeaderWorkerSet")
        and each["metadata"]["name"] == f"tandem-{component}"
    )
    return found


@pytest.mark.promise("S5-291")
@one_case("component", COMPONENTS)
@one_case("left", [{"replicas": None}, HPA])
def test_a_number_that_others_decide_is_left_out_and_the_object_says_so(
    component: str, left: dict[str, Any]
) -> None:
    found = workload(component, {component: left})
    assert "replicas" not in found["spec"]
    assert found["metadata"]["annotations"][MARK] == "left to others"


@one_case("component", COMPONENTS)
@one_case("replicas", [0, 3])
def test_a_number_that_the_values_declare_is_there(component: str, replicas: int) -> None:
    found = workload(component, {component: {"replicas": replicas}})
    assert found["spec"]["replicas"] == replicas
    assert MARK not in found["metadata"].get("annotations", {})


@pytest.mark.promise("S5-291")
def test_a_group_of_nodes_leaves_its_number_out_as_a_deployment_does() -> None:
    grouped = {**SGLANG, "decode": {**NODES, "replicas": None}}
    found = workload("decode", grouped)
    assert found["kind"] == "LeaderWorkerSet"
    assert "replicas" not in found["spec"]
    assert found["metadata"]["annotations"][MARK] == "left to others"


def owner(
    manager: str, *, operation: str = "Apply", replicas: bool = False, chart: bool = False
) -> dict[str, Any]:
    """An entry of an object's managedFields."""
    labels = {"f:labels": {"f:helm.sh/chart": {}}} if chart else {}
    spec = {"f:replicas": {}} if replicas else {"f:paused": {}}
    fields = {"f:metadata": labels, "f:spec": spec}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


SCALED = owner("kube-controller-manager", operation="Update", replicas=True)
LIVE: dict[str, tuple[list[dict[str, Any]], dict[str, str], str]] = {
    # What is live: its owners, its annotations, and the number that the chart then renders.
    "declared-by-who-applies": ([owner("helm", replicas=True, chart=True)], {}, "3"),
    "declared-and-scaled-since": ([owner("helm", chart=True), SCALED], {}, ""),
    "declared-and-shared": ([owner("helm", replicas=True, chart=True), SCALED], {}, ""),
    "left-out-and-nobody-s": ([owner("helm", chart=True)], {MARK: "left to others"}, ""),
    "declared-on-the-client-s-side": (
        [owner("helm", operation="Update", replicas=True, chart=True)],
        {},
        "3",
    ),
    "scaled-but-declared-on-the-client-s-side": (
        [owner("helm", operation="Update", chart=True), SCALED],
        {},
        "3",
    ),
    "left-out-on-the-client-s-side": (
        [owner("helm", operation="Update", replicas=True, chart=True)],
        {MARK: "left to others"},
        "",
    ),
    "applied-by-another-that-is-not-the-chart": (
        [owner("helm", operation="Update", replicas=True, chart=True), owner("mesh")],
        {},
        "3",
    ),
}


@pytest.mark.promise("S5-291")
@one_case("live", LIVE)
def test_a_live_number_is_held_only_where_leaving_it_out_would_delete_it(live: str) -> None:
    """The template's own judgement of objects as an API server shows them."""
    owners, annotations, number = LIVE[live]
    shown = {
        "metadata": {"managedFields": owners, "annotations": annotations},
        "spec": {"replicas": 3},
    }
    assert held(shown) == number


def test_where_nothing_is_live_nothing_is_held() -> None:
    assert held({}) == ""


def held(shown: dict[str, Any]) -> str:
    template = f'{{{{ include "tandem.heldReplicas" (fromJson `{json.dumps(shown)}`) | quote }}}}'
    extra = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held"}}
    rendered = chart_renders.manifests({"extraObjects": [{**extra, "data": {"number": template}}]})
    (found,) = (each for each in rendered if each["metadata"]["name"] == "held")
    return str(found["data"]["number"]).strip('"')


@one_case("component", COMPONENTS)
def test_a_budget_lets_the_only_pod_go_or_keeps_it_as_the_values_say(component: str) -> None:
    def budget(values: dict[str, Any]) -> dict[str, Any]:
        given = {component: {"podDisruptionBudget": values}}
        spec = pods.made(given, "PodDisruptionBudget", f"tandem-{component}")["spec"]
        return {key: spec[key] for key in spec if key.endswith("vailable")}

    assert budget({}) == {"maxUnavailable": 1}
    assert budget({"minAvailable": 1}) == {"minAvailable": 1}
    assert budget({"minAvailable": "50%"}) == {"minAvailable": "50%"}
