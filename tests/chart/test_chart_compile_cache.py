"""A claim keeps what engines compile, so that not every new pod compiles it again."""

from __future__ import annotations

from typing import Any

import chart_renders
import pods
import pytest
from one_case import one_case
from pods import by_name
from refusals import GPU, VLLM

SET = "compile-cache"
CLAIMS = {
    "prefill": "tandem-prefill-compile-cache",
    "decode": "compiled",
    "worker": "tandem-worker-compile-cache",
}


def volumes(pod: pods.Pod) -> list[dict[str, Any]]:
    return [each for each in pod.spec["volumes"] if each["name"] == "compile-cache"]


@pytest.mark.promise("S5-481")
@one_case("component", CLAIMS)
def test_every_pod_of_a_worker_mounts_its_claim_and_may_write_to_it(component: str) -> None:
    """Prefill is a group: all its pods are made of one template."""
    pod = pods.of_set(SET)[component]
    (volume,) = volumes(pod)
    assert volume["persistentVolumeClaim"] == {"claimName": CLAIMS[component]}
    mounts = pod.main["volumeMounts"]
    assert {"name": "compile-cache", "mountPath": "/tmp/cache"} in mounts
    security = pod.spec["securityContext"]
    assert security["fsGroup"] == security["runAsGroup"] == 10001


@pytest.mark.promise("S5-481")
def test_the_chart_makes_the_claims_that_have_a_size_and_no_others() -> None:
    made = by_name(SET, "PersistentVolumeClaim")
    assert set(made) == set(CLAIMS.values()) - {"compiled"}
    assert made["tandem-prefill-compile-cache"]["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "shared",
        "resources": {"requests": {"storage": "20Gi"}},
    }
    assert made["tandem-worker-compile-cache"]["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert all("annotations" not in each["metadata"] for each in made.values()), "none is kept"


@pytest.mark.parametrize("values", [{}, GPU, VLLM])
def test_without_one_kernels_stay_in_the_pod(values: dict[str, Any]) -> None:
    assert not [pod for pod in pods.of_values(values).values() if volumes(pod)]
    kinds = [each["kind"] for each in chart_renders.manifests(values)]
    assert "PersistentVolumeClaim" not in kinds


def test_a_claim_of_workers_that_are_not_there_is_not_made() -> None:
    values = {**GPU, "worker": {"compileCache": {"size": "10Gi"}}}
    kinds = [each["kind"] for each in chart_renders.manifests(values)]
    assert "PersistentVolumeClaim" not in kinds


def test_a_claim_is_no_new_revision() -> None:
    """Else workers with one would never make a pair with workers without."""
    before = pods.of_values(GPU)["decode"].settings
    after = pods.of_values({**GPU, "decode": {"compileCache": {"size": "20Gi"}}})["decode"].settings
    assert before == after
