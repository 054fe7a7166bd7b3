"""A HorizontalPodAutoscaler of the chart, driven by load. Needs the resource metrics API."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from cluster_values import BASE, component
from kube import attempt, until
from release import Release


@pytest.mark.timeout(600)
def test_load_makes_the_autoscaler_add_frontends(release: Release, tmp_path: Path) -> None:
    if attempt("kubectl", "get", "apiservice", "v1beta1.metrics.k8s.io").returncode:
        pytest.skip("this cluster has no resource metrics API (metrics-server)")
    until("nodes are measured", lambda: not attempt("kubectl", "top", "nodes").returncode)
    values = copy.deepcopy(BASE)
    values["frontend"] = component(
        2,
        config=BASE["frontend"]["config"],
        autoscaling={
            "type": "hpa",
            "minReplicas": 1,
            "maxReplicas": 3,
            "targetCPUUtilization": 50,
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    )
    release.install(values, tmp_path, verb="upgrade")

    def wanted() -> int:
        autoscaler = f"{release.name}-frontend"
        return int(release.namespace.get("hpa", autoscaler)["status"].get("desiredReplicas", 0))

    try:
        until("an idle frontend is enough", lambda: wanted() == 1, seconds=180)
        with release.loaded("autoscaling of frontends from 1 to 3", clients=32) as seen:
            until("load asks for three", lambda: wanted() == 3, seconds=180)
            until("they serve", lambda: len(release.ready_pods("frontend")) == 3)
        assert seen.failures == {}, seen
    finally:
        # Back to a number of the values, which the autoscaler owns until others scale.
        values["frontend"] = component(None, config=BASE["frontend"]["config"])
        release.install(values, tmp_path, verb="upgrade")
        release.scale("frontend", BASE["frontend"]["replicas"])
        release.install(BASE, tmp_path, verb="upgrade")
