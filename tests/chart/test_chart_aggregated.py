"""Workers that serve both phases: off by default, beside the pairs, alone, scaled to nothing."""

from __future__ import annotations

from typing import Any

import chart_renders
import pods
import pytest
from chart_renders import Manifest
from one_case import one_case

from tandem import config
from tandem.worker.config import WorkerConfig
from tandem_router.config import RouterConfig

ALONE = {"prefill": {"replicas": 0}, "decode": {"replicas": 0}}


def rendered(**values: Any) -> dict[tuple[str, str], Manifest]:
    given = {"worker": {"enabled": True, **values.pop("worker", {})}, **values}
    objects = chart_renders.manifests(given)
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def settings(objects: dict[tuple[str, str], Manifest], component: str) -> dict[str, Any]:
    (pod,) = (each for each in pods.of(tuple(objects.values())) if each.component == component)
    return pod.settings


def test_nothing_of_them_is_made_unless_it_is_asked_for() -> None:
    names = [each["metadata"]["name"] for each in chart_renders.of_set("default")]
    assert "tandem-worker" not in names
    assert "worker_service" not in pods.of_set("default")["router"].settings


@pytest.mark.promise("S5-330")
@one_case("discovery", ["kubernetes", "dns"])
def test_the_router_finds_them_beside_the_pairs(discovery: str) -> None:
    objects = rendered(router={"discovery": discovery})
    given = settings(objects, "router")
    found = config.of_mapping(RouterConfig, {**given, "tls_cert": "", "tls_key": "", "tls_ca": ""})
    if discovery == "kubernetes":
        assert found.worker_service == "tandem-worker"
    else:
        assert found.workers == ("tandem-worker:7300",)
    (port,) = objects["Service", "tandem-worker"]["spec"]["ports"]
    assert (port["name"], port["port"]) == ("grpc", 7300)


def test_they_have_the_hooks_classifiers_and_processors_of_both_phases() -> None:
    chain = {"chain": [{"path": "secrets"}]}
    judges = {"hold_back": "all", "entries": [{"path": "my_pkg.judge:Judge"}]}
    objects = rendered(hooks=chain, classifiers=judges, worker={"config": {"max_sequences": 9}})
    given = settings(objects, "worker")
    found = config.of_mapping(WorkerConfig, {**given, "tls_cert": "", "tls_key": "", "tls_ca": ""})
    assert (found.hooks, found.classifiers, found.max_sequences) == (chain, judges, 9)
    assert found.ready_when_paired
    assert found.listen.endswith(":7300")
    assert found.metrics_listen.endswith(":7301")


def test_they_carry_the_code_that_they_import() -> None:
    pod = pods.of_set("aggregated")["worker"]
    assert pod.carried("code-files") == chart_renders.values("aggregated")["code"]["files"]
    (path,) = (each["value"] for each in pod.main["env"] if each["name"] == "PYTHONPATH")
    mounts = {each["name"]: each["mountPath"] for each in pod.main["volumeMounts"]}
    assert path == mounts["code-files"]


def test_no_device_for_a_hand_over_is_asked_for() -> None:
    rdma = {"enabled": True, "resourceName": "rdma/ib"}
    objects = rendered(kvTransfer={"rdma": rdma})

    def asked(component: str) -> dict[str, Any]:
        spec = objects["Deployment", f"tandem-{component}"]["spec"]["template"]["spec"]
        limits: dict[str, Any] = spec["containers"][0]["resources"].get("limits", {})
        return limits

    assert "rdma/ib" in asked("decode")
    assert "rdma/ib" not in asked("worker")


def test_alone_they_are_verified_without_a_hand_over() -> None:
    objects = rendered(**ALONE)
    assert objects["Deployment", "tandem-prefill"]["spec"]["replicas"] == 0
    (container,) = objects["Pod", "tandem-test"]["spec"]["containers"]
    assert not [each for each in container["args"] if each.startswith("--kv")]
    assert settings(rendered(), "router").get("expected_models") is None


@pytest.mark.promise("S5-330")
def test_scaled_to_nothing_they_are_expected_and_counted_once() -> None:
    objects = rendered(
        **ALONE,
        worker={"autoscaling": {"type": "keda", "minReplicas": 0}},
        router={"config": {"pair_wait_seconds": 600}},
        monitoring={"prometheusAddress": "http://prometheus:9090"},
    )
    assert settings(objects, "router")["expected_models"]
    scaled = objects["ScaledObject", "tandem-worker"]["spec"]
    assert scaled["minReplicaCount"] == 0
    queries = [each["metadata"]["query"] for each in scaled["triggers"]]
    assert "tandem_frontend_open_requests" in queries[0]
    assert all('phase="decode"' in query for query in queries[1:]), "both phases say the same"


def test_a_metrics_adapter_is_asked_for_one_phase() -> None:
    objects = rendered(worker={"autoscaling": {"type": "hpa"}})
    metrics = objects["HorizontalPodAutoscaler", "tandem-worker"]["spec"]["metrics"]
    selectors = [each["pods"]["metric"]["selector"]["matchLabels"] for each in metrics]
    assert selectors == [{"phase": "decode"}] * 2


def test_each_has_the_certificate_of_its_role() -> None:
    issuer = {"enabled": True, "issuerRef": {"name": "tandem", "kind": "Issuer"}}
    objects = rendered(tls={"enabled": True, "certManager": issuer})
    spec = objects["Certificate", "tandem-worker-tls"]["spec"]
    assert spec["dnsNames"] == ["worker.tandem.tandem"]
