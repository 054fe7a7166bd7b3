"""Services, policies, budgets and scalers lead to the pods, and to the ports, that they mean."""

from __future__ import annotations

import inspect
import re

import chart_renders
import pods
import promql_parser
import pytest
from chart_renders import SETS, Manifest
from pods import by_name

from router.discovery import slice_watch
from tandem.worker import metrics as worker_metrics

COMPONENTS = ("frontend", "router", "prefill", "decode")
ONLY_PEERS = {
    # Component -> port to the components that may connect to it; of "" every port.
    "frontend": {"metrics": {"test"}, "http": {"*"}},
    "router": {"metrics": {"test"}, "grpc": {"frontend"}},
    "prefill": {"metrics": {"test"}, "grpc": {"router"}, "": {"decode"}},
    "decode": {"metrics": {"test"}, "grpc": {"router"}, "": {"prefill"}},
}


@pytest.mark.parametrize("name", SETS)
def test_selectors_are_labels_of_the_pods_they_mean(name: str) -> None:
    found = pods.of_set(name)
    for each in chart_renders.of_set(name):
        spec = each.get("spec", {})
        selector = {
            "Deployment": lambda spec=spec: spec["selector"]["matchLabels"],
            "Service": lambda spec=spec: spec["selector"],
            "NetworkPolicy": lambda spec=spec: spec["podSelector"]["matchLabels"],
            "PodDisruptionBudget": lambda spec=spec: spec["selector"]["matchLabels"],
        }.get(each["kind"])
        if selector is not None:
            pod = found[each["metadata"]["labels"]["app.kubernetes.io/component"]]
            assert selector().items() <= pod.labels.items()
            assert "app.kubernetes.io/component" in selector()


@pytest.mark.parametrize("name", SETS)
def test_services_lead_to_ports_that_pods_have(name: str) -> None:
    found = pods.of_set(name)
    for service in by_name(name, "Service").values():
        ports = found[service["spec"]["selector"]["app.kubernetes.io/component"]].main["ports"]
        for port in service["spec"]["ports"]:
            assert port["targetPort"] in {each["name"] for each in ports}


@pytest.mark.parametrize("component", ["prefill", "decode"])
def test_workers_have_a_headless_service_with_the_port_that_discovery_asks_for(
    component: str,
) -> None:
    spec = by_name("default", "Service")[f"tandem-{component}"]["spec"]
    assert spec["clusterIP"] == "None"
    assert [port["name"] for port in spec["ports"]] == ["grpc"]


def test_dns_names_workers_before_a_router_uses_them() -> None:
    """They are ready only then."""
    services = {
        service["metadata"]["labels"]["app.kubernetes.io/component"]: service["spec"]
        for service in by_name("restricted", "Service").values()
    }
    for component in ("prefill", "decode"):
        assert services[component]["publishNotReadyAddresses"] is True


@pytest.mark.promise("S5-128", "S6-161")
@pytest.mark.parametrize("component", COMPONENTS)
def test_every_port_is_open_to_those_who_need_it_and_to_nobody_else(component: str) -> None:
    policy = by_name("default", "NetworkPolicy")[f"tandem-{component}"]["spec"]
    opened: dict[str, set[str]] = {}
    for rule in policy["ingress"]:
        for port in rule.get("ports", [{"port": ""}]):
            opened.setdefault(port["port"], set()).update(_peers(rule))
    assert opened == ONLY_PEERS[component]
    ports = {port["name"] for port in pods.of_set("default")[component].main["ports"]}
    assert opened.keys() - {""} <= ports
    assert ports <= opened.keys() or "" in opened


def test_what_a_policy_lets_out_the_other_lets_in() -> None:
    policies = by_name("default", "NetworkPolicy")
    for component in COMPONENTS:
        for rule in policies[f"tandem-{component}"]["spec"]["egress"]:
            for peer in _peers(rule, "to") - {"*"}:
                numbers = {port["port"] for port in rule.get("ports", ())}
                other = pods.of_set("default")[peer].main["ports"]
                names = {each["name"] for each in other if each["containerPort"] in numbers}
                assert any(component in ONLY_PEERS[peer][name] for name in names or {""})


def test_a_list_of_ports_that_is_emptied_opens_none() -> None:
    """A rule without ports and without peers would let everything out."""
    egress: dict[str, list[int]] = {"dnsPorts": [], "apiPorts": []}
    for each in chart_renders.manifests({"networkPolicy": {"egress": egress}}):
        if each["kind"] == "NetworkPolicy":
            assert all(rule.get("to") for rule in each["spec"]["egress"]), each["metadata"]["name"]


@pytest.mark.promise("S6-161")
def test_named_peers_are_the_only_ones_beside_the_test() -> None:
    policies = by_name("restricted", "NetworkPolicy").values()
    frontend = next(each for each in policies if each["metadata"]["name"].endswith("-frontend"))
    assert frontend["spec"]["ingress"][0]["from"][0] == {
        "namespaceSelector": {"matchLabels": {"team": "clients"}}
    }
    assert [_peers(rule) for rule in frontend["spec"]["ingress"]] == [{"*", "test"}, {"*", "test"}]


@pytest.mark.promise("S5-127")
def test_the_router_asks_the_api_for_what_it_is_allowed_and_for_nothing_else() -> None:
    source = inspect.getsource(slice_watch)
    calls = set(re.findall(r"\bapi\.(\w+)", source))
    assert calls == {"list_namespaced_endpoint_slice"}
    verbs = {"list", *(["watch"] if "watch=True" in source else [])}
    (rule,) = by_name("default", "Role")["tandem-router"]["rules"]
    assert rule["apiGroups"] == ["discovery.k8s.io"]
    assert rule["resources"] == ["endpointslices"]
    assert set(rule["verbs"]) == verbs


def test_the_role_is_bound_to_the_router_alone() -> None:
    binding = by_name("default", "RoleBinding")["tandem-router"]
    account = pods.of_set("default")["router"].spec["serviceAccountName"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": chart_renders.NAMESPACE}
    ]
    assert binding["roleRef"]["name"] in by_name("default", "Role")


def test_dns_needs_no_rights() -> None:
    for kind in ("Role", "RoleBinding"):
        (name,) = by_name("restricted", kind)
        assert name.endswith("-tls")


@pytest.mark.parametrize("name", SETS)
def test_who_is_scaled_has_no_replicas_of_its_own(name: str) -> None:
    scalers: list[Manifest] = [
        *by_name(name, "HorizontalPodAutoscaler").values(),
        *by_name(name, "ScaledObject").values(),
    ]
    scaled = [each["spec"]["scaleTargetRef"]["name"] for each in scalers]
    assert len(set(scaled)) == len(scaled)
    workloads = by_name(name, "Deployment") | by_name(name, "LeaderWorkerSet")
    for each in scalers:
        target = each["spec"]["scaleTargetRef"]
        workload = workloads[target["name"]]
        meant = (target.get("apiVersion", "apps/v1"), target.get("kind", "Deployment"))
        assert meant == (workload["apiVersion"], workload["kind"])
    for workload in workloads.values():
        scales = workload["metadata"]["name"] in scaled
        assert ("replicas" in workload["spec"]) is not scales


def test_keda_asks_for_series_of_the_pods_it_scales() -> None:
    (trigger,) = by_name("keda", "ScaledObject")["tandem-prefill"]["spec"]["triggers"]
    query = trigger["metadata"]["query"]
    assert query == 'sum(tandem_worker_waiting_legs{namespace="tandem",pod=~"tandem-prefill-.+"})'


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_keda_asks_for_metrics_that_workers_have(phase: str) -> None:
    objects = chart_renders.manifests(
        {
            "monitoring": {"prometheusAddress": "http://prometheus:9090"},
            phase: {"autoscaling": {"type": "keda"}},
        }
    )
    (scaler,) = (each for each in objects if each["kind"] == "ScaledObject")
    known = inspect.getsource(worker_metrics)
    for trigger in scaler["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        promql_parser.parse(query)
        names = set(re.findall(r"tandem_\w+(?={)", query))
        assert names
        assert all(f'"{name}"' in known for name in names)


@pytest.mark.parametrize(
    ("values", "surge"),
    [
        ({}, 1),
        ({"model": {"uri": "pvc://m"}}, 1),
        ({"model": {"uri": "pvc://m"}, "decode": {"replicas": 2}}, 0),
        ({"model": {"uri": "pvc://m"}, "decode": {"replicas": 2, "rollout": "surge"}}, 1),
        ({"model": {"uri": "pvc://m"}, "decode": {"replicas": 2}, "engine": {"device": "cpu"}}, 1),
        ({"decode": {"rollout": "replace"}}, 0),
    ],
)
def test_a_rollout_takes_a_spare_accelerator_only_where_it_must(
    values: dict[str, object], surge: int
) -> None:
    objects = chart_renders.manifests(values)
    deployment = next(
        each
        for each in objects
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "tandem-decode"
    )
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": surge, "maxUnavailable": 1 - surge}


def _peers(rule: Manifest, key: str = "from") -> set[str]:
    """Components; "*" for anybody, or for a peer that is no component."""
    peers = rule.get(key, [{}])
    return {
        each.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/component", "*")
        for each in peers
    }


@pytest.mark.promise("S5-282")
@pytest.mark.parametrize(
    ("router", "several"),
    [
        ({"replicas": 1}, False),
        ({"replicas": 0}, False),
        ({"replicas": 3}, True),
        ({"replicas": 1, "autoscaling": {"type": "hpa", "maxReplicas": 3}}, True),
        ({"replicas": 3, "autoscaling": {"type": "hpa", "maxReplicas": 1}}, False),
    ],
)
def test_frontends_find_each_of_several_routers_that_is_ready(
    router: dict[str, object], several: bool
) -> None:
    """One router's Service leads to the next one at once; DNS may be some seconds behind."""
    rendered = {
        (each["kind"], each["metadata"]["name"]): each
        for each in chart_renders.manifests({"router": router})
    }
    text = rendered["ConfigMap", "tandem-frontend"]["data"]["tandem.yaml"]
    address = "dns://tandem-router-each:7000" if several else "tandem-router:7000"
    assert f"router: {address}\n" in text
    headless = rendered.get(("Service", "tandem-router-each"))
    assert (headless is not None) is several
    if headless is not None:
        assert headless["spec"]["clusterIP"] == "None"
        assert not headless["spec"].get("publishNotReadyAddresses")
        assert (
            headless["spec"]["selector"]
            == (rendered["Service", "tandem-router"]["spec"]["selector"])
        )
